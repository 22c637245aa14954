// Drives BullMQ for Node, with the commands of benchmarks/drive.py. What its jobs do is what benchmarks/work.py does.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const { Queue, Worker } = require('bullmq');

const BATCH = 250;
const WARM_UP = 50;
const TEXT = 'x'.repeat(64);
const IO_MS = 10;
const url = new URL(process.env.BENCH_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const seconds = () => Number(process.hrtime.bigint()) / 1e9;

async function one(queue, task, limit) {
  for (let i = 0; i < WARM_UP; i++) await queue.add(task, { text: TEXT });
  let jobs = 0;
  const started = seconds();
  while (seconds() - started < limit) {
    for (let i = 0; i < 10; i++) await queue.add(task, { text: TEXT });
    jobs += 10;
  }
  return { jobs, seconds: seconds() - started };
}

async function many(queue, task, most, limit) {
  let jobs = 0;
  const started = seconds();
  while (jobs < most && seconds() - started < limit) {
    const size = Math.min(BATCH, most - jobs);
    await queue.addBulk(Array.from({ length: size }, () => ({ name: task, data: { text: TEXT } })));
    jobs += size;
  }
  return { jobs, seconds: seconds() - started };
}

async function pace(queue, count, gap) {
  const started = seconds();
  for (let i = 0; i < count; i++) {
    await new Promise((done) => setTimeout(done, gap));
    await queue.add('stamp', { text: process.hrtime.bigint().toString().padStart(64, '0') });
  }
  return { jobs: count, seconds: seconds() - started };
}

// Node has no shared memory to count in: the count goes to the file every 2 ms at the most.
class Counter {
  constructor() {
    this.file = fs.openSync(path.join(process.env.BENCH_DIR, `${process.pid}.count`), 'w');
    this.stamps = fs.openSync(path.join(process.env.BENCH_DIR, `${process.pid}.stamps`), 'w');
    this.jobs = 0n;
    this.timer = null;
  }

  add() {
    this.jobs += 1n;
    this.timer ??= setTimeout(() => this.write(), 2);
  }

  write() {
    this.timer = null;
    const bytes = Buffer.alloc(8);
    bytes.writeBigInt64LE(this.jobs);
    fs.writeSync(this.file, bytes, 0, 8, 0);
  }

  stamp(text) {
    const bytes = Buffer.alloc(8);
    bytes.writeBigInt64LE(process.hrtime.bigint() - BigInt(text));
    fs.writeSync(this.stamps, bytes);
    this.add();
  }
}

function consume(workers) {
  const counter = new Counter();
  new Worker('bench', async (job) => {
    if (job.name === 'stamp') return counter.stamp(job.data.text);
    if (job.name === 'io') await new Promise((done) => setTimeout(done, IO_MS));
    counter.add();
  }, { connection, concurrency: workers || 300 });
}

async function main([command, ...words]) {
  if (command === 'consume') return consume(Number(words[0]));
  const queue = new Queue('bench', { connection });
  await queue.waitUntilReady();
  let result;
  if (command === 'one') result = await one(queue, words[0], Number(words[1]));
  else if (command === 'many') result = await many(queue, words[0], Number(words[1]), Number(words[2]));
  else result = await pace(queue, Number(words[0]), Number(words[1]));
  console.log(JSON.stringify(result));
  process.exit(0);
}

main(process.argv.slice(2));
