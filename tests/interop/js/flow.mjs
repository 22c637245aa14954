// Adds a tree with a FlowProducer: {name, queueName, data, opts, children}, queues without braces. Answers the ids of the
// root and of its children.
import { args, load, options, say, wire } from './kit.mjs';

const { FlowProducer } = load('bullmq');
const wired = (node) => ({ ...node, queueName: wire(node.queueName), children: node.children?.map(wired) });
const added = await new FlowProducer(options).add(wired(args[0]));
say({ id: added.job.id, children: (added.children ?? []).map((child) => child.job.id) });
process.exit(0);
