"""The ways to have the visits of a phase computed: client by client, all at once, or over Ray's workers.

Each is an `Executor` (`engine.study`). The loop is the oracle that every other one is tested against. A
deployment's is in `flower.server`.
"""
