// Calls methods of a Queue, one after the other: [[method, ...args], ...]; `job:ID` first calls it on that job.
// Answers the list of what they returned, jobs as plain data.
import { args, load, options, plain, queueName, say } from './kit.mjs';

const { Queue } = load('bullmq');
const queue = new Queue(queueName, options);
const answers = [];
for (const [first, ...rest] of args[0]) {
  if (first.startsWith('job:')) {
    const job = await queue.getJob(first.slice(4));
    const [method, ...given] = rest;
    answers.push(plain(await job[method](...given)));
  } else {
    answers.push(plain(await queue[first](...rest)));
  }
}
say(answers);
process.exit(0);
