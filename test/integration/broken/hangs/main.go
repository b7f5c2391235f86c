// Command hangs does nothing and never ends. As machined it does not feed the watchdog.
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
