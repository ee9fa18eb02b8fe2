#!/bin/sh
# The `weir` command in an image, which has the verbs of its own service alone.
set -eu
case "${1:-}" in
  up | down)
    echo "weir: \`weir $1\` is for the machine that the stack runs on; in a container there is nothing to start or stop" >&2
    exit 2
    ;;
  doctor)
    if [ "${2:-}" = --box ]; then
      echo "weir: \`weir doctor --box\` is for the machine; in containers: docker compose run --rm preflight" >&2
      exit 2
    fi
    owner=gateway module=weir.verbs
    ;;
  compose) owner=gateway module=deploy.compose ;;
  plan) owner=learner module=services.learner.plan ;;
  sft) owner=learner module=services.learner.sft.__main__ ;;
  replay) owner=learner module=services.learner.replay ;;
  grade) owner=grader module=services.grader.offline.__main__ ;;
  data) owner=grader module=services.data.__main__ ;;
  *) owner=gateway module=weir.verbs ;;
esac
if [ "$SERVICE" != "$owner" ]; then
  [ "$owner" = gateway ] && how=exec || how='run --rm'  # a command of the gateway's talks to it
  echo "weir: \`weir${1:+ $1}\` is in the $owner's image: docker compose $how $owner weir${*:+ $*}" >&2
  exit 2
fi
[ "$module" = weir.verbs ] || shift
exec python3 -m services.chassis.command "$module" "$@"
