#!/usr/bin/env bash
# A Slurm of one node on this machine, for trying job scripts and for the test: munged, slurmctld and slurmd from Debian's
# packages slurm-wlm and munge, with sockets, ports, key and state of their own under DIR. Needs root.
set -euo pipefail

fail() {
  printf 'local_slurm.sh: %s\n' "$2" >&2
  exit "$1"
}

[[ $# == 2 && $1 =~ ^(start|stop)$ ]] || fail 2 "usage: local_slurm.sh start DIR | stop DIR   (then: export SLURM_CONF=DIR/slurm.conf)"
((EUID == 0)) || fail 2 "needs root"
dir=$(realpath -m "$2")
export SLURM_CONF=$dir/slurm.conf

# alive DAEMON PID: whether this process is (still) that daemon. A dead one may stay as a zombie, its number may be reused.
alive() { awk -v name="$1" '/^Name:/ { n = $2 } /^State:/ { s = $2 } END { exit !(n == name && s !~ /[ZX]/) }' "/proc/$2/status" 2>/dev/null; }

pid_of() { cat "$dir/$1.pid" 2>/dev/null || echo none; }

stop() {
  local daemon pid
  for daemon in slurmd slurmctld munged; do
    pid=$(pid_of "$daemon")
    alive "$daemon" "$pid" || continue
    kill "$pid"
    for _ in {1..100}; do alive "$daemon" "$pid" || break; sleep 0.1; done
    ! alive "$daemon" "$pid" || kill -KILL "$pid"
    rm -f "$dir/$daemon.pid"
  done
}

state() { sinfo --noheader --format=%T 2>/dev/null || true; }

start() {
  local tool host port
  for tool in munged mungekey slurmctld slurmd sinfo; do
    PATH=$PATH:/usr/sbin command -v "$tool" >/dev/null || fail 2 "$tool is missing: apt-get install slurm-wlm munge"
  done
  ((${#dir} < 80)) || fail 2 "the path of DIR is too long for a socket: $dir"
  ! alive slurmctld "$(pid_of slurmctld)" || [[ ! $(state) =~ ^(idle|mixed|allocated)$ ]] || return 0
  stop
  mkdir -p "$dir/state" "$dir/spool"
  chmod 755 "$dir" # the socket in it is for all users
  host=$(hostname -s)
  port=$((20000 + RANDOM % 20000))
  cat >"$SLURM_CONF" <<E
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.8)}' /proc/meminfo) State=UNKNOWN
PartitionName=local Nodes=ALL Default=YES MaxTime=INFINITE State=UP
E
  [[ -e $dir/munge.key ]] || mungekey --create --keyfile="$dir/munge.key"
  munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
    --log-file="$dir/munged.log" --seed-file="$dir/munge.seed" || fail 1 "munged did not start, see $dir/munged.log"
  slurmctld || { stop; fail 1 "slurmctld did not start, see $dir/slurmctld.log"; }
  slurmd || { stop; fail 1 "slurmd did not start, see $dir/slurmd.log"; }
  for _ in {1..100}; do
    [[ $(state) == idle ]] && return 0
    sleep 0.3
  done
  tail -n 5 "$dir"/slurmctld.log "$dir"/slurmd.log >&2
  stop
  fail 1 "the node did not become idle within 30 s, see the logs in $dir"
}

PATH=$PATH:/usr/sbin
"$1"
[[ $1 == stop ]] || echo "Slurm is up: export SLURM_CONF=$SLURM_CONF"
