// Package uevent hears from the kernel which devices come and go, and loads the modules that they
// ask for.
//
// A device names its driver by its modalias ("pci:v00001AF4d…"); pkg/kmod knows which module
// answers to it. Devices that are there before anyone listens are found by walking sysfs once (cold
// plug).
//
// The package makes no device nodes and no links (devtmpfs makes the nodes; who looks for a disk
// reads sysfs), has no rules and runs no programs.
package uevent

import (
	"bytes"
	"errors"
	"strings"
)

// Event is what the kernel says about one device. See Documentation/ABI/stable/sysfs-devices and
// lib/kobject_uevent.c.
type Event struct {
	Action    string            // "add", "remove", "change", "bind", …
	DevPath   string            // below /sys: "/devices/pci0000:00/…"
	Subsystem string            // "block", "net", "input", …; empty if the device has none
	Vars      map[string]string // everything that was said, those above included
}

// errNotKernel says that a message does not have the kernel's form.
var errNotKernel = errors.New("not a message of the kernel's")

// Parse understands a message: "add@/devices/…" and then KEY=VALUE, each ended by a zero byte.
// Messages of udev, which begin with "libudev", are refused.
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
