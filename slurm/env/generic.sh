# shellcheck shell=bash
# Any Slurm cluster whose MPI library works with srun, in the environment the job was submitted from: load your modules before
# sbatch. If `srun --mpi=list` names pmix, `export SLURM_MPI_TYPE=pmix` makes it the default for Open MPI.
export launcher=srun
