// Adds one job, {name, data, opts}, and waits for its end as a Node producer does. Answers {value} or {error}.
import { args, load, options, queueName, say } from './kit.mjs';

const { Queue, QueueEvents } = load('bullmq');
const [{ name, data, opts }] = args;
// From the start of the stream: the job may end before the first read of a reader that starts only now.
const events = new QueueEvents(queueName, { ...options, lastEventId: '0' });
const job = await new Queue(queueName, options).add(name, data, opts);
try {
  say({ value: await job.waitUntilFinished(events, 10_000) });
} catch (error) {
  say({ error: error.message });
}
process.exit(0);
