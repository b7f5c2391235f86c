// Command hangs ignores all signals and never ends. If it runs as machined, nothing feeds the
// watchdog.
package main

import (
	"os"
	"os/signal"
)

func main() {
	wait := make(chan os.Signal, 1)
	signal.Notify(wait)
	for range wait { // ignore all signals
	}
}
