// What every script shares: its arguments, the installed packages, and one JSON value a line on standard output.
import { createRequire } from 'node:module';

const [home, port, name, ...rest] = process.argv.slice(2);

export const args = rest.map((text) => JSON.parse(text));
export const load = createRequire(`${home}/`);
export const wire = (queue) => `{${queue}}`;
export const queueName = wire(name);
export const options = { prefix: 'emq', connection: { host: '127.0.0.1', port: Number(port) } };
export const say = (value) => process.stdout.write(`${JSON.stringify(value ?? null)}\n`);

// Standard input stays open for as long as the test lives.
process.stdin.resume().on('end', () => process.exit(0));

const FIELDS = [
  'id', 'name', 'data', 'opts', 'progress', 'returnvalue', 'failedReason', 'stacktrace', 'attemptsMade',
  'attemptsStarted', 'stalledCounter', 'delay', 'priority', 'timestamp', 'processedOn', 'finishedOn', 'processedBy',
];

/** A job as plain data; anything else as it is. */
export function plain(value) {
  if (Array.isArray(value)) return value.map(plain);
  if (value?.queueQualifiedName === undefined) return value;
  return Object.fromEntries(FIELDS.map((field) => [field, value[field] ?? null]));
}
