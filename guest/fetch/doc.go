// Package fetch brings pinned files onto this machine: each is known by its
// size and SHA-256 before it is asked for, lands in a content-addressed cache,
// and is never used, nor given its name there, before its whole digest is
// right. Any number of processes may share a cache.
//
// Sources are tried in order until one delivers: a mirror that a person named,
// the mirrors that this machine's own apt is set up with, and last the snapshot
// archive, the only one that keeps superseded versions. None of them is
// trusted; what a mirror can do is to be slow or useless. Proxies are those of
// the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY).
package fetch
