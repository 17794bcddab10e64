// Package box is the life of a box in the guest: it waits for room, makes the
// box, reads its settings back, puts the program in, gives the go, ends the
// program in time, reads the final counters, removes everything, confirms that
// it is gone, and says what of all that it knows. It decides; what it decides on
// is done and read by others: package engine makes containers, runner starts the
// program, readback compares settings, counters and oom read the kernel.
package box
