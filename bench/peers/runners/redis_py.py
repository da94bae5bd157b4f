"""redis-py's Lock as a participant: obeys orders on standard input, see src/protocol.rs."""

import asyncio
import json
import sys
import time

import redis.asyncio as redis

HOLD, PAUSE = 0.001, 0.005


def boot_nanos():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


async def one(client, name, until, contend, took, expiry=30):
    while time.perf_counter() < until:
        start = time.perf_counter_ns()
        lock = client.lock(name, timeout=expiry)
        await lock.acquire()
        if contend:
            took.append(time.perf_counter_ns() - start)
            await asyncio.sleep(HOLD)
            await lock.release()
            await asyncio.sleep(PAUSE)
        else:
            await lock.release()
            took.append(time.perf_counter_ns() - start)


async def loops(client, names, millis, contend):
    begun = time.perf_counter()
    took = [[] for _ in names]
    until = begun + millis / 1000
    await asyncio.gather(*(one(client, n, until, contend, t) for n, t in zip(names, took)))
    return {
        "counts": [len(t) for t in took],
        "nanos": [n for t in took for n in t],
        "elapsed_nanos": int((time.perf_counter() - begun) * 1e9),
    }


async def handover(clients, order):
    begun, turn, rounds, nanos = time.perf_counter(), 0, 0, []

    async def wait(client):
        lock = client.lock(order["name"], timeout=30)
        await lock.acquire()
        got = time.perf_counter_ns()
        await lock.release()
        return got

    while time.perf_counter() - begun < order["millis"] / 1000 or rounds < 4:
        held = clients[turn].lock(order["name"], timeout=30)
        await held.acquire()
        waiting = asyncio.create_task(wait(clients[1 - turn]))
        turn = 1 - turn
        await asyncio.sleep((order["settle_millis"] + rounds * 37 % 200) / 1000)
        released = time.perf_counter_ns()
        await held.release()
        got = await waiting
        rounds += 1
        if rounds > 2:
            nanos.append(max(0, got - released))
    return {"counts": [len(nanos)], "nanos": nanos}


async def obey(order, state):
    kind = order["do"]
    if kind == "open":
        state["url"] = order["url"]
        state["clients"] = [redis.from_url(order["url"]) for _ in range(2)]
        await state["clients"][0].ping()
        return {}
    client = state["clients"][0]
    if kind == "cycles":
        names = [f"{order['prefix']}{n}" for n in range(order["tasks"])]
        return await loops(client, names, order["millis"], False)
    if kind == "contend":
        return await loops(client, [order["name"]] * order["tasks"], order["millis"], True)
    if kind == "handover":
        return await handover(state["clients"], order)
    if kind == "hold":
        asked = boot_nanos()
        await client.lock(order["name"], timeout=order["expiry_millis"] / 1000).acquire()
        return {"moment_nanos": asked}
    if kind == "wait":
        lock = client.lock(order["name"], timeout=order["expiry_millis"] / 1000)
        await lock.acquire()
        got = boot_nanos()
        await lock.release()
        return {"moment_nanos": got}
    return {"error": "it does not extend what it holds"}


async def main():
    state = {}
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        cpu = time.process_time_ns()
        try:
            answer = await obey(json.loads(line), state)
        except Exception as error:  # told to the benchmark, which says so in its table
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer.setdefault("cpu_nanos", time.process_time_ns() - cpu)
        print(json.dumps(answer), flush=True)


asyncio.run(main())
