package bootlog

import (
	"os"
	"strings"
)

// ID identifies the current boot (random(4), boot_id).
func ID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown" // every Linux kernel has this file
	}
	return strings.TrimSpace(string(id))
}
