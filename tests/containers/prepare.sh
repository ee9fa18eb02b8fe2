#!/usr/bin/env bash
# Makes a Debian machine without a docker engine and without an image registry able to build and run
# Weir's containers: podman, a real docker-compose, and base images by debootstrap, under the names
# that deploy/Dockerfile and docker-compose.yml use. Run as root.
#   WEIR_CONTAINERS_HOME=FOLDER prepare.sh engine                        podman and docker-compose
#   WEIR_CONTAINERS_HOME=FOLDER prepare.sh image python python:3.11-x    one base image, if it is not there
set -euo pipefail
cd "$(dirname "$0")"
home=${WEIR_CONTAINERS_HOME:?a folder for images and containers, 20 GB free}
export CONTAINERS_CONF=$home/containers.conf CONTAINERS_STORAGE_CONF=$home/storage.conf
export CONTAINERS_REGISTRIES_CONF=$home/registries.conf

# The mirror that this machine's own apt uses.
mirror() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | sed -n 's,/debian/$,/debian,p' | head -n 1; }

engine() {
  if [ ! -x "$(command -v podman)" ] || [ ! -x "$(command -v debootstrap)" ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      podman buildah runc netavark aardvark-dns debootstrap iptables xz-utils >/dev/null
  fi
  mkdir -p "$home/networks" /etc/containers
  # podman starts no container without a policy
  [ -e /etc/containers/policy.json ] || echo '{"default": [{"type": "insecureAcceptAnything"}]}' >/etc/containers/policy.json
  # Equal soft and hard limits: podman 4.3's docker socket swaps them, and runc then refuses.
  cat >"$home/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=16384:16384"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "$home/networks"
CONF
  printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' "$home/storage" "$home/run" >"$home/storage.conf"
  printf 'unqualified-search-registries = ["localhost"]\nshort-name-mode = "permissive"\n' >"$home/registries.conf"
  [ -x "$home/docker-compose" ] || compose_of_debian_13
}

# Debian 12 has no docker-compose 2; that of Debian 13 is one static program.
compose_of_debian_13() {
  local from; from=$(mirror)
  local deb; deb=$(curl -sSf "$from/dists/trixie/main/binary-$(dpkg --print-architecture)/Packages.xz" | xz -dc |
    awk '/^Package: /{p=$2} /^Filename: /&&p=="docker-compose"&&!n++{print $2}')
  curl -sSf -o "$home/compose.deb" "$from/$deb"
  dpkg-deb -x "$home/compose.deb" "$home/compose"
  ln -sf "$(find "$home/compose" -type f -name docker-compose -size +1M)" "$home/docker-compose"
}

# What the official image has and Debian has not: a pip that installs. Both have Python.h, with which
# vLLM on a CPU compiles.
python() {
  local root=$home/rootfs
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv,libpython3-dev \
    bookworm "$root" "$(mirror)" >"$home/debootstrap.log"
  rm -rf "$root"/usr/lib/python3*/EXTERNALLY-MANAGED "$root"/var/cache/apt/archives/*.deb
  cat /etc/ssl/certs/ca-certificates.crt >"$root/etc/ssl/certs/ca-certificates.crt"
  local made; made=$(buildah from scratch)
  buildah add -q "$made" "$root" / >/dev/null
  buildah config --cmd python3 --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$made"
  buildah commit -q --rm "$made" "localhost/$1" >/dev/null
  buildah tag "localhost/$1" localhost/weir-test-python
  rm -rf "$root"
}

image() { # KIND NAME
  if buildah inspect "localhost/$2" >/dev/null 2>&1; then return; fi
  if [ "$1" = python ]; then python "$2"; return; fi
  buildah bud -q --layers --isolation chroot --network host --pull-never --build-arg BASE=localhost/weir-test-python \
    --target "$1" -t "localhost/$2" . >/dev/null
}

"$@"
