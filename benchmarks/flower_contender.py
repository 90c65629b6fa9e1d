"""Flower's simulation (Ray actors, one for each core), run in an environment of its own.

The server is a loop over push_messages and pull_messages, because Flower's own send_and_receive sleeps three
seconds between looks. A client is told which visit it makes, sets a module to the server's parameters, takes
its local steps (CDMA-NC) and sends the parameters back. There are as many nodes as clients.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.work import Clock, Order, answer

client, server = ClientApp(), ServerApp()


@cache
def opened(folder: str, device: str) -> tuple[Order, torch.nn.Module, list[torch.nn.Parameter]]:
    """An actor reads the data and builds the model once."""
    torch.set_num_threads(1)  # there is an actor for each core
    order = Order(folder, device)
    module = order.model()
    return order, module, [*module.descending(), *module.ascending()]


@client.train()
def train(message: Message, context: Context) -> Message:
    task = message.content["task"]
    order, module, both = opened(task["folder"], task["device"])
    values = message.content["z"].to_numpy_ndarrays()[0]
    vector_to_parameters(torch.from_numpy(values).to(order.device), both)
    optimiser = torch.optim.SGD(
        [
            {"params": module.descending(), "lr": order.rule["eta"]},
            {"params": module.ascending(), "lr": order.rule["gamma"], "maximize": True},
        ]
    )
    inputs, labels = order.minibatches(task["round"], task["visit"])
    size = order.rule["batch"]
    for some, own in zip(inputs.split(size), labels.split(size), strict=True):
        optimiser.zero_grad()
        module.loss(some, own).backward()
        optimiser.step()
    z = ArrayRecord([parameters_to_vector(both).detach().cpu().numpy()])
    return Message(RecordDict({"z": z}), reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    folder, device = sys.argv[1:3]
    order = Order(folder, device)
    x, y = (order.tensor(name).cpu().numpy() for name in "xy")
    z, memory = np.concatenate([x, y]), 0.0
    while len(nodes := list(grid.get_node_ids())) < len(order.runs):
        time.sleep(0.1)

    def one(round: int) -> None:
        nonlocal z
        messages = []
        record = ArrayRecord([z])
        for visit, number in enumerate(order.cohort[round].tolist()):
            task = ConfigRecord({"folder": folder, "device": device, "round": round, "visit": visit})
            content = RecordDict({"z": record, "task": task})
            messages.append(Message(content, dst_node_id=nodes[number], message_type="train"))
        waiting, total = set(grid.push_messages(messages)), np.zeros_like(z)
        while waiting:
            for reply in grid.pull_messages(waiting):
                if reply.has_error():
                    raise RuntimeError(reply.error.reason)
                waiting.discard(reply.metadata.reply_to_message_id)
                total += reply.content["z"].to_numpy_ndarrays()[0]
            time.sleep(0.001)
        z = total / order.visits

    clock = Clock(device, order.rounds, threads=[1])  # the actors share the cores among themselves
    for round in range(order.rounds):
        clock.begin(round)
        one(round)
        clock.end(round)
        memory = max(memory, sum(held(process) for process in family(os.getpid())))
    answer(order, clock, torch.from_numpy(z[: len(x)]), torch.from_numpy(z[len(x) :]), memory)


def family(process: int) -> Iterator[int]:
    """A process and all that it started, at any remove."""
    yield process
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from family(int(child))


def held(process: int) -> float:
    """The memory of a process in MB, with its part of what it shares."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:  # it has ended
        return 0.0
    return int(text.split("Pss:")[1].split()[0]) * 1024 / 1e6


def main(folder: str, device: str) -> None:
    cores = len(os.sched_getaffinity(0))
    share = {"num_cpus": 1.0, "num_gpus": 0.0 if device == "cpu" else 1.0 / cores}
    config = {"client_resources": share, "init_args": {"num_cpus": cores, "include_dashboard": False}}
    run_simulation(server, client, len(Order(folder).runs), backend_config=config)


if __name__ == "__main__":
    from benchmarks import flower_contender  # by its name, under which the actors can import it

    flower_contender.main(*sys.argv[1:3])
