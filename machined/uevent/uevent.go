// Package uevent receives device events from the kernel, and loads the modules for new devices.
//
// A device identifies its driver by a modalias ("pci:v00001AF4d…"), and pkg/kernel/kmod maps the
// modalias to a module. The package reads sysfs once for the devices that existed before it started
// to listen (cold plug).
//
// The package creates no device nodes and no links: devtmpfs creates the nodes, and code that
// searches a disk reads sysfs. It has no rules and runs no programs.
package uevent

import (
	"bytes"
	"errors"
	"strings"
)

// Event is an event of a device. See Documentation/ABI/stable/sysfs-devices and
// lib/kobject_uevent.c.
type Event struct {
	Action    string            // "add", "remove", "change", "bind", …
	DevPath   string            // path below /sys: "/devices/pci0000:00/…"
	Subsystem string            // "block", "net", "input", …; empty if the device has none
	Vars      map[string]string // all variables, including the fields above
}

// errNotKernel means that a message does not have the format of the kernel.
var errNotKernel = errors.New("not a message of the kernel")

// Parse parses a message of the kernel: "add@/devices/…" and then KEY=VALUE pairs that each end
// with a zero byte. It returns an error for messages of udev, which begin with "libudev".
func Parse(message []byte) (Event, error) {
	parts := bytes.Split(bytes.TrimRight(message, "\x00"), []byte{0})
	action, path, ok := strings.Cut(string(parts[0]), "@")
	if !ok || action == "" || !strings.HasPrefix(path, "/") {
		return Event{}, errNotKernel
	}
	e := Event{Action: action, DevPath: path, Vars: make(map[string]string, len(parts)-1)}
	for _, part := range parts[1:] {
		if key, value, ok := strings.Cut(string(part), "="); ok {
			e.Vars[key] = value
		}
	}
	e.Subsystem = e.Vars["SUBSYSTEM"]
	return e, nil
}
