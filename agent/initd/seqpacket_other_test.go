//go:build !linux

package initd

const hasSeqpacket = false
