# shellcheck shell=bash
# Shared by ./quickstart, ./test and .ci/run, which source it: packages, configuring and building.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=$(($(nproc) < 16 ? $(nproc) : 16)) # login nodes are shared
yes=${CI:+yes}                          # answers every ask()
apt_line=""                             # how to install what is missing and could not be installed

# fail STATUS MESSAGE: one line, and the end.
fail() {
  printf '%s: %s\n' "${0##*/}" "$2" >&2
  exit "$1"
}

# ask QUESTION: true if the answer is yes. Without a terminal, and without --yes, the answer is no.
ask() {
  [[ $yes ]] && return 0
  [[ -t 0 ]] || return 1
  local answer
  read -r -p "$1 [y/N] " answer
  [[ $answer == [yY]* ]]
}

# missing_packages USE…: packages for these uses (cmake/packages.txt) that are not installed. None where there is no dpkg:
# there cluster modules have to provide them, and CMake says what it misses.
missing_packages() {
  command -v dpkg-query >/dev/null || return 0
  local wanted
  wanted=$(awk -v uses=" $* " 'index(uses, " " $1 " ") { for (i = 2; i <= NF; ++i) print $i }' "$root/cmake/packages.txt")
  # shellcheck disable=SC2086  # one word per package
  comm -23 <(sort -u <<<"$wanted") \
    <({ dpkg-query -W -f='${db:Status-Status} ${Package}\n' $wanted 2>/dev/null || true; } | sed -n 's/^installed //p' | sort -u)
}

# install_packages USE…: installs what is missing, if that is possible here. If not, sets apt_line and returns: the tools may
# come from elsewhere, which build() finds out.
install_packages() {
  local missing sudo=()
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  local install=(apt-get install -y --no-install-recommends "${missing[@]}")
  if ((EUID != 0)); then
    sudo=(sudo)
    apt_line="sudo ${install[*]}"
    command -v sudo >/dev/null || return 0
    sudo -n true 2>/dev/null || { [[ -t 0 ]] && ask "Missing: ${missing[*]}. Install with sudo?"; } || return 0
  fi
  echo "Installing ${missing[*]}"
  run "${sudo[@]}" apt-get update || true # an unreachable source need not be the one that is wanted
  if run "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}"; then apt_line=""; else apt_line="${sudo[*]} ${install[*]}"; fi
}

# run COMMAND…: into the log if there is one, else to the console. A failure shows the end of the log.
log=""
run() {
  if [[ ! $log ]]; then
    "$@" </dev/null
    return
  fi
  printf '\n$ %s\n' "$*" >>"$log"
  local status=0
  if [[ -t 1 ]]; then # the last line of the output serves as progress
    "$@" </dev/null 2>&1 | tee -a "$log" | while IFS= read -r line; do printf '\r\e[2K%.*s' "${COLUMNS:-79}" "$line"; done || status=$?
    printf '\r\e[2K'
  else
    "$@" </dev/null >>"$log" 2>&1 || status=$?
  fi
  ((status == 0)) || printf '%s\n%s: %s failed, all it said is in %s\n' "$(tail -n 20 "$log")" "${0##*/}" "${1##*/}" "$log" >&2
  return "$status"
}

# build FOLDER TARGET [CMAKE_OPTION…]: configures and builds the whole suite, whatever the folder was for. Does nothing the second time.
build() {
  local folder=$1 target=$2
  local hint=${apt_line:+"; install what is missing: $apt_line"}
  command -v cmake >/dev/null || fail 2 "cmake is not here: ${apt_line:-load a module of cmake 3.25 or later}"
  command -v ninja >/dev/null && export CMAKE_GENERATOR="${CMAKE_GENERATOR:-Ninja}"
  run cmake -S "$root" -B "$folder" -DCMAKE_BUILD_TYPE=Release -DSCAPE_HARNESS=ON -DSCAPE_NATIVE=ON "${@:3}" || fail 2 "cannot configure$hint"
  run cmake --build "$folder" -j "$jobs" --target "$target" || fail 1 "cannot build in $folder$hint"
}
