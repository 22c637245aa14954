// A Worker whose tasks take what a Python producer sends: {args: [...], kwargs: {...}}. Says what happens to its jobs.
import { args, load, options, queueName, say } from './kit.mjs';

const { UnrecoverableError, Worker } = load('bullmq');
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const tasks = {
  add: ({ args: [a, b = 0], kwargs }) => a + b + (kwargs.c ?? 0),
  echo: (data) => data,
  nothing: () => undefined,
  talk: async (data, job) => {
    await job.log('from Node');
    await job.updateProgress({ done: 50 });
    return 'talked';
  },
  fail: () => { throw new Error('broken in Node'); },
  giveUp: () => { throw new UnrecoverableError('hopeless'); },
  sleep: async ({ args: [ms] }) => { await sleep(ms); return 'slept'; },
  gather: async (data, job) => Object.values(await job.getChildrenValues()).sort(),
  tolerate: async (data, job) => ({
    values: Object.values(await job.getChildrenValues()),
    ignored: Object.values(await (job.getIgnoredChildrenFailures ?? job.getFailedChildrenValues).call(job)),
  }),
  hold: () => new Promise(() => {}),
};
const worker = new Worker(queueName, (job) => {
  say({ event: 'active', id: job.id, name: job.name });
  return tasks[job.name](job.data, job);
}, { ...options, ...args[0] });
worker.on('completed', (job) => say({ event: 'completed', id: job.id }));
worker.on('failed', (job, error) => say({ event: 'failed', id: job?.id, reason: error.message }));
worker.on('stalled', (id) => say({ event: 'stalled', id }));
worker.on('error', (error) => say({ event: 'error', reason: String(error) }));
