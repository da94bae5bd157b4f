"""redis-py's Lock as a participant: executes commands from standard input, see src/protocol.rs."""

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


async def handoff(clients, command):
    begun, holder, rounds, nanos = time.perf_counter(), 0, 0, []

    async def wait(client):
        lock = client.lock(command["name"], timeout=30)
        await lock.acquire()
        granted = time.perf_counter_ns()
        await lock.release()
        return granted

    while time.perf_counter() - begun < command["millis"] / 1000 or rounds < 4:
        held = clients[holder].lock(command["name"], timeout=30)
        await held.acquire()
        waiting = asyncio.create_task(wait(clients[1 - holder]))
        holder = 1 - holder
        await asyncio.sleep((command["settle_millis"] + rounds * 37 % 200) / 1000)
        released = time.perf_counter_ns()
        await held.release()
        granted = await waiting
        rounds += 1
        if rounds > 2:
            nanos.append(max(0, granted - released))
    return {"counts": [len(nanos)], "nanos": nanos}


async def execute(command, state):
    kind = command["do"]
    if kind == "open":
        state["url"] = command["url"]
        state["clients"] = [redis.from_url(command["url"]) for _ in range(2)]
        await state["clients"][0].ping()
        return {}
    client = state["clients"][0]
    if kind == "cycles":
        names = [f"{command['prefix']}{n}" for n in range(command["tasks"])]
        return await loops(client, names, command["millis"], False)
    if kind == "contend":
        return await loops(client, [command["name"]] * command["tasks"], command["millis"], True)
    if kind == "handoff":
        return await handoff(state["clients"], command)
    if kind == "hold":
        requested = boot_nanos()
        await client.lock(command["name"], timeout=command["expiry_millis"] / 1000).acquire()
        return {"moment_nanos": requested}
    if kind == "wait":
        lock = client.lock(command["name"], timeout=command["expiry_millis"] / 1000)
        await lock.acquire()
        granted = boot_nanos()
        await lock.release()
        return {"moment_nanos": granted}
    return {"error": "it does not renew held locks"}


async def main():
    state = {}
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        cpu = time.process_time_ns()
        try:
            reply = await execute(json.loads(line), state)
        except Exception as error:  # reported to the benchmark
            reply = {"error": f"{type(error).__name__}: {error}"}
        reply.setdefault("cpu_nanos", time.process_time_ns() - cpu)
        print(json.dumps(reply), flush=True)


asyncio.run(main())
