"""The same experiments on real devices, over Flower.

    wire        what a message looks like: flat floats as bytes and a header, checked before it is read
    client      the ClientApp: one client's answer, by the code the simulator uses
    policy      what a device lets a server ask
    server      the ServerApp: real arrivals, the same Quorum, the same aggregation
    playing     one lane's round on those arrivals
    usual       how large updates are, and which are none of the run's
    post        messages on their way, whole and in memory
    grid        the ServerApp's end of the post
    signing     how a node shows who it is
    door        who may come to the post from outside, how many, for how long, and with how much
    link        the SuperLink, of which nothing but the post can be reached from outside
    store       the SuperLink's database, put aside if it is damaged
    node        one device: its connection to the post
    keys        certificates and node keys
    deploy      `serve`, `join` and `local`: who starts what
    journal     what is said, with the time, and an audit log
    metrics     how a deployment is, for monitoring
    supervise   processes that are started, watched and ended together
    _flwr       all that is imported from Flower

No algorithm knows any of this. Flower brings messages, apps, runs, and the list of registered nodes;
FedSaddle's post carries the messages, and its processes take the place of Flower's executors, so that no side
ever runs code that came over the wire.
"""

from __future__ import annotations

import importlib.util
import os

from fedsaddle.errors import BadInput

# Flower reads these when it is imported. It then asks nobody outside for anything.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPERGRID_API_URL": "http://127.0.0.1:9/v1",  # nobody listens there
    "FLWR_LOG_LEVEL": "WARNING",
}
os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

if importlib.util.find_spec("flwr") is None:
    raise BadInput("deployment needs Flower: pip install 'flwr>=1.41,<1.43'")
