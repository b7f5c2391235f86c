package bootenv

import (
	"os"
	"strings"
)

// BootID identifies the current boot (random(4), boot_id).
func BootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown" // every Linux kernel has this file
	}
	return strings.TrimSpace(string(id))
}
