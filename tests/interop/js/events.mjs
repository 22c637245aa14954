// A QueueEvents reader, from the first event of the stream. Says those that a test names, and what ends its loop.
import { args, load, options, queueName, say } from './kit.mjs';

const { QueueEvents } = load('bullmq');
const events = new QueueEvents(queueName, { ...options, lastEventId: '0' });
for (const event of args[0]) events.on(event, (told) => say({ event, ...told }));
events.on('error', (error) => say({ event: 'error', reason: String(error) }));
