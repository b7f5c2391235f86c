package network

import (
	"fmt"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/glob"
)

// Match selects hardware by patterns of package glob. All patterns must match. An empty pattern
// matches any value.
type Match struct {
	Name   string
	MAC    string // permanent MAC, lower case with colons
	Driver string
	Path   string // path of the device below /sys/devices
}

// String returns a text that identifies the match in messages. Package transition prints the same
// text.
func (m Match) String() string {
	parts := []string{"match"}
	for _, f := range []struct{ name, pattern string }{{"name", m.Name}, {"mac", m.MAC}, {"driver", m.Driver}, {"path", m.Path}} {
		if f.pattern != "" {
			parts = append(parts, f.name+" "+f.pattern)
		}
	}
	return strings.Join(parts, " ")
}

func (m Match) matches(l Link) bool {
	fits := func(pattern, text string) bool { return pattern == "" || glob.Match(pattern, text) }
	return l.Physical() && fits(m.Name, l.Name) && fits(m.MAC, l.permanentMAC()) && fits(m.Driver, l.Driver) && fits(m.Path, l.Path)
}

// Names of hardware settings; see LinkConfig.Hardware.
const (
	HardwareRX        = "rx ring"
	HardwareTX        = "tx ring"
	HardwarePause     = "pause"       // off, rx, tx, both or auto
	HardwareWake      = "wake-on-LAN" // off, or a name of wakeFlags
	HardwareFunctions = "virtual functions"
	HardwareOffload   = "offload " // followed by the kernel's name of the feature; on or off
)

// hardwareReason returns the effect of a changed setting on the link, as text for the operator. It
// returns "" without an effect.
func hardwareReason(name, before, after string) string {
	switch name {
	case HardwareRX, HardwareTX, HardwarePause:
		return "the link may lose its carrier for a moment"
	case HardwareFunctions:
		if before != "" && before != "0" && after != before {
			return fmt.Sprintf("the %s present functions are removed first, which interrupts their traffic", before)
		}
	}
	return ""
}

// formerHardware has the settings of hardware before their first change by this package, by index
// of the link and name of the setting. A setting gets this original value back when the
// configuration does not name it any more.
type formerHardware map[int]map[string]string

// record adds the settings that ops change for the first time. Before that, it deletes the entries
// of links that are gone and of settings that have their original value.
func (f formerHardware) record(links []Link, ops []Op) {
	for index, settings := range f {
		i := slices.IndexFunc(links, func(l Link) bool { return l.Index == index })
		for name, own := range settings {
			if i < 0 || links[i].Settings[name] == own {
				delete(settings, name)
			}
		}
		if len(settings) == 0 {
			delete(f, index)
		}
	}
	for _, o := range ops {
		i := slices.IndexFunc(links, func(l Link) bool { return l.Index == o.Index })
		if o.Verb != SetHardware || i < 0 {
			continue
		}
		own, readable := links[i].Settings[o.Name]
		if _, known := f[o.Index][o.Name]; known || !readable {
			continue
		}
		if f[o.Index] == nil {
			f[o.Index] = map[string]string{}
		}
		f[o.Index][o.Name] = own
	}
}

// hardware adds the operations that change settings of hardware.
func (d *linkDiff) hardware() {
	for _, w := range d.want.Links {
		l := d.link(w.Index)
		if l == nil {
			continue
		}
		for _, name := range sortedKeys(w.Hardware) {
			if now, value := l.Settings[name], w.Hardware[name]; now != value {
				d.add(Op{Verb: SetHardware, Link: w.Name, Index: w.Index, Name: name, Value: value, Change: Change{Reason: hardwareReason(name, now, value)}})
			}
		}
	}
}
