#!/bin/sh
# Posts once what a feed prints: post.sh pbs.py. FLOPWATCH_URL is the server's address and
# FLOPWATCH_FEED_TOKEN_FILE the file that `flopwatch token feed` wrote. Where nothing was taken it
# fails, and says why.
set -eu

body=$(mktemp)
trap 'rm -f "$body"' EXIT
"$(dirname "$0")/$1" > "$body"
# The token comes by a pipe: arguments are for everybody to see.
printf 'Authorization: Bearer %s\n' "$(cat "$FLOPWATCH_FEED_TOKEN_FILE")" |
    curl --silent --show-error --fail-with-body --max-time 60 \
        --header @- --header 'Content-Type: application/x-ndjson' \
        --data-binary "@$body" "$FLOPWATCH_URL/api/v1/feed"
