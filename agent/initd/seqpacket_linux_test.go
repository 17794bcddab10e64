package initd

const hasSeqpacket = true
