"""Two workers of Dask that talk UCXX, and a view that goes from one to the other: run by `test_dask_ucxx`."""

from __future__ import annotations

import os

import cai_dlpack as cd
import numpy as np
from cai_dlpack import dask

COUNT = 1 << 16


def made() -> cd.CaiView:
    return cd.view(np.arange(float(COUNT)))


def read(view: cd.CaiView) -> tuple[tuple[int, int], float, int]:
    return view.device, float(np.asarray(view).sum()), os.getpid()


def main() -> None:
    from distributed import Client, LocalCluster

    dask.register()
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            protocol="ucxx",
            dashboard_address=None,
            memory_limit=0,
            preload="cai_dlpack.dask",
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        one, other = sorted(client.scheduler_info()["workers"])
        assert one.startswith("ucxx://") and other.startswith("ucxx://")
        sent = client.submit(made, workers=[one])
        device, total, process = client.submit(read, sent, workers=[other]).result(timeout=60)
        assert (device, total) == ((1, 0), sum(range(COUNT)))
        assert process != client.submit(os.getpid, workers=[one], pure=False).result()
    print("over ucxx: right")


if __name__ == "__main__":
    main()
