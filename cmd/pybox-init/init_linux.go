package main

import "github.com/pybox/pybox/agent/initd"

func runInit() { initd.Main() }
