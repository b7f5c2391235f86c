package bootlog

import (
	"os"
	"strings"
)

// ID names the time since the machine was switched on (random(4), boot_id).
func ID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown" // there is no Linux without it
	}
	return strings.TrimSpace(string(id))
}
