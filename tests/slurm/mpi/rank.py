"""One rank of a real MPI program, without a compiler: says which it is, on which node and cores, and for how long.

python rank.py LIBRARY SECONDS      in the run's directory; LIBRARY is MPICH's or Open MPI's libmpi
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

library, seconds = sys.argv[1], float(sys.argv[2])
mpi = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
# MPI_COMM_WORLD: a number in MPICH's ABI, the address of a global in Open MPI's.
try:
    world, mpi_name = ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")), "openmpi"
except ValueError:
    world, mpi_name = ctypes.c_int(0x44000000), "mpich"
mpi.MPI_Init(None, None)
number, size = ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(number))
mpi.MPI_Comm_size(world, ctypes.byref(size))
mpi.MPI_Barrier(world)
began = time.time()
time.sleep(seconds)
about = {
    "rank": number.value,
    "size": size.value,
    "mpi": mpi_name,
    "node": os.environ.get("SLURMD_NODENAME", ""),
    "job": os.environ.get("SLURM_JOB_ID", ""),
    "cores": sorted(os.sched_getaffinity(0)),
    "threads": os.environ.get("OMP_NUM_THREADS"),
    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "began": began,
    "ended": time.time(),
}
with Path(f"rank-{number.value}-{os.getpid()}.json").open("w") as file:
    json.dump(about, file)
mpi.MPI_Barrier(world)
mpi.MPI_Finalize()
