// Package initd is PID 1 of the guest. It mounts what the guest needs, sets the
// kernel up, starts the agent, reaps every orphan and keeps the timers that end
// a box when the agent does not. When the agent dies it kills every box and
// powers the guest off. It starts nothing else, reads nothing that a box wrote
// and answers the host on one port of its own, with its records.
//
// With a kernel that has its drivers as modules the same program is the init of an
// initial RAM file system first: it loads them, forbids any more, and becomes the
// init of the root.
//
// It stays small because nothing supervises it: if it ends, the kernel panics
// and the machine is gone, which the host sees.
package initd
