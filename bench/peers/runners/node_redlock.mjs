// node-redlock as a participant: executes commands from standard input, see src/protocol.rs.
import readline from 'node:readline';
import fs from 'node:fs';
import { createRequire } from 'node:module';

const require = createRequire(process.env.NODE_DEPS + '/');
const Redis = require('ioredis');
const Redlock = require('redlock');

const HOLD = 1, PAUSE = 5;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const now = () => process.hrtime.bigint();
// Node has no boot clock. The kernel reports the uptime to a hundredth of a second, and its offset from Node's clock is constant.
const bootOffset = BigInt(Math.round(parseFloat(fs.readFileSync('/proc/uptime', 'utf8').split(' ')[0]) * 1e9)) - now();
const bootNanos = () => Number(now() + bootOffset);

let clients = [];
// Its defaults, except for the number of tries: a waiter tries until it has the lock.
const locksOn = (client) => new Redlock([client], { retryCount: -1 });

async function loop(locks, name, until, contend, took) {
  while (now() < until) {
    const start = now();
    const lock = await locks.lock(name, 30000);
    if (contend) {
      took.push(Number(now() - start));
      await sleep(HOLD);
      await lock.unlock();
      await sleep(PAUSE);
    } else {
      await lock.unlock();
      took.push(Number(now() - start));
    }
  }
}

async function loops(names, millis, contend) {
  const begun = now();
  const until = begun + BigInt(millis) * 1000000n;
  const took = names.map(() => []);
  const locks = locksOn(clients[0]);
  await Promise.all(names.map((name, n) => loop(locks, name, until, contend, took[n])));
  return { counts: took.map((t) => t.length), nanos: took.flat(), elapsed_nanos: Number(now() - begun) };
}

async function handoff(command) {
  const begun = now();
  const all = clients.map(locksOn);
  const nanos = [];
  for (let rounds = 0, holder = 0; Number(now() - begun) < command.millis * 1e6 || rounds < 4; rounds++, holder = 1 - holder) {
    const held = await all[holder].lock(command.name, 30000);
    const waiting = (async () => {
      const lock = await all[1 - holder].lock(command.name, 30000);
      const granted = now();
      await lock.unlock();
      return granted;
    })();
    await sleep(command.settle_millis + (rounds * 37) % 200);
    const released = now();
    await held.unlock();
    const granted = await waiting;
    if (rounds >= 2) nanos.push(Math.max(0, Number(granted - released)));
  }
  return { counts: [nanos.length], nanos };
}

async function execute(command) {
  switch (command.do) {
    case 'open':
      clients = [new Redis(command.url), new Redis(command.url)];
      await clients[0].ping();
      return {};
    case 'cycles':
      return loops(Array.from({ length: command.tasks }, (_, n) => `${command.prefix}${n}`), command.millis, false);
    case 'contend':
      return loops(Array(command.tasks).fill(command.name), command.millis, true);
    case 'handoff':
      return handoff(command);
    case 'hold': {
      const requested = bootNanos();
      await locksOn(clients[0]).lock(command.name, command.expiry_millis);
      return { moment_nanos: requested };
    }
    case 'wait': {
      const lock = await locksOn(clients[0]).lock(command.name, command.expiry_millis);
      const granted = bootNanos();
      await lock.unlock();
      return { moment_nanos: granted };
    }
    default:
      return { error: 'it does not renew held locks' };
  }
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  const cpu = process.cpuUsage();
  let reply;
  try {
    reply = await execute(JSON.parse(line));
  } catch (error) {
    reply = { error: String(error) };
  }
  const used = process.cpuUsage(cpu);
  reply.cpu_nanos ??= (used.user + used.system) * 1000;
  process.stdout.write(JSON.stringify(reply) + '\n');
}
process.exit(0);
