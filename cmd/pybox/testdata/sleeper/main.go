// Command sleeper is an init that speaks once and then sleeps for ever.
package main

import (
	"fmt"
	"time"
)

func main() {
	fmt.Println("sleeper: awake\x1b[31m")
	for {
		time.Sleep(time.Hour)
	}
}
