// node-redlock as a participant: obeys orders on standard input, see src/protocol.rs.
import readline from 'node:readline';
import fs from 'node:fs';
import { createRequire } from 'node:module';

const require = createRequire(process.env.NODE_DEPS + '/');
const Redis = require('ioredis');
const Redlock = require('redlock');

const HOLD = 1, PAUSE = 5;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const now = () => process.hrtime.bigint();
// Node's clock does not tell the time since the machine's start; the kernel does, to a hundredth of a second, and the
// distance between the two stays the same.
const bootOffset = BigInt(Math.round(parseFloat(fs.readFileSync('/proc/uptime', 'utf8').split(' ')[0]) * 1e9)) - now();
const bootNanos = () => Number(now() + bootOffset);

let clients = [];
// Its own settings, but for the number of tries: one who wants the lock asks until it has it.
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

async function handover(order) {
  const begun = now();
  const all = clients.map(locksOn);
  const nanos = [];
  for (let rounds = 0, turn = 0; Number(now() - begun) < order.millis * 1e6 || rounds < 4; rounds++, turn = 1 - turn) {
    const held = await all[turn].lock(order.name, 30000);
    const waiting = (async () => {
      const lock = await all[1 - turn].lock(order.name, 30000);
      const got = now();
      await lock.unlock();
      return got;
    })();
    await sleep(order.settle_millis + (rounds * 37) % 200);
    const released = now();
    await held.unlock();
    const got = await waiting;
    if (rounds >= 2) nanos.push(Math.max(0, Number(got - released)));
  }
  return { counts: [nanos.length], nanos };
}

async function obey(order) {
  switch (order.do) {
    case 'open':
      clients = [new Redis(order.url), new Redis(order.url)];
      await clients[0].ping();
      return {};
    case 'cycles':
      return loops(Array.from({ length: order.tasks }, (_, n) => `${order.prefix}${n}`), order.millis, false);
    case 'contend':
      return loops(Array(order.tasks).fill(order.name), order.millis, true);
    case 'handover':
      return handover(order);
    case 'hold': {
      const asked = bootNanos();
      await locksOn(clients[0]).lock(order.name, order.expiry_millis);
      return { moment_nanos: asked };
    }
    case 'wait': {
      const lock = await locksOn(clients[0]).lock(order.name, order.expiry_millis);
      const got = bootNanos();
      await lock.unlock();
      return { moment_nanos: got };
    }
    default:
      return { error: 'it does not extend what it holds' };
  }
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  const cpu = process.cpuUsage();
  let answer;
  try {
    answer = await obey(JSON.parse(line));
  } catch (error) {
    answer = { error: String(error) };
  }
  const used = process.cpuUsage(cpu);
  answer.cpu_nanos ??= (used.user + used.system) * 1000;
  process.stdout.write(JSON.stringify(answer) + '\n');
}
process.exit(0);
