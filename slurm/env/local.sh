# shellcheck shell=bash
# The one-machine Slurm of local_slurm.sh: Open MPI's own launcher, as root, sharing cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_hwloc_base_binding_policy=none OMP_NUM_THREADS=1
export launcher="mpirun -n $SLURM_NTASKS"
