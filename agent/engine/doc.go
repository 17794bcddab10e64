// Package engine makes, watches and removes containers: containerd embedded in
// the agent, one long-lived shim process and the OCI runtime crun. It knows
// nothing of what a box is, of programs, limits or images: it takes a runtime
// specification and gives back a task.
//
// # Parts
//
// Of containerd there is what carries a container from a record to a task: the
// metadata store with its container records, the task service, and what these
// two require (content store, native snapshotter, events, warnings); nothing
// listens anywhere. Its runtime plugin is ours: containerd's own starts programs
// for every task that is removed (its shim's "delete", then "crun delete"), opens
// a log pipe and a connection for each, and starts shims by itself. Ours starts
// one shim, ahead of need, and speaks to it over one end of a socket pair that no
// other process can reach. What the shim does is containerd's code again
// (containerd-shim-runc-v2/task), in a process of its own so that the agent need
// not be the parent of every process of every box.
//
// # When the shim ends
//
// Boxes outlive it: PID 1 of the guest becomes their parent. But nobody can tell
// any more how they end, start or remove them: every Task is lost, and Engine.Lost
// is closed. The boxes are to be killed through their cgroups, their counters
// read, and Engine.Restart then removes all that is left of them and starts
// another shim. When the agent ends the shim sees its connection close and ends.
package engine
