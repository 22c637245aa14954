// bull-board under /ui on a free port of 127.0.0.1, for all the queues that are named. Says its port.
import { args, load, options, say, wire } from './kit.mjs';

const express = load('express');
const { Queue } = load('bullmq');
const { createBullBoard } = load('@bull-board/api');
const { BullMQAdapter } = load('@bull-board/api/bullMQAdapter');
const { ExpressAdapter } = load('@bull-board/express');

const serverAdapter = new ExpressAdapter();
serverAdapter.setBasePath('/ui');
createBullBoard({ queues: args[0].map((name) => new BullMQAdapter(new Queue(wire(name), options))), serverAdapter });
const listener = express().use('/ui', serverAdapter.getRouter()).listen(0, '127.0.0.1', () => {
  say({ port: listener.address().port });
});
