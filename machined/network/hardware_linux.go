package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"
)

// wakeFlags are the WAKE_* flags of include/uapi/linux/ethtool.h.
var wakeFlags = map[string]uint32{"off": 0, "phy": 1, "unicast": 2, "multicast": 4, "broadcast": 8, "arp": 16, "magic": 32}

// pauseModes are the values of HardwarePause except "auto". The numbers are the flags for
// autonegotiation, received pause frames and sent pause frames.
var pauseModes = map[string][3]uint32{"off": {0, 0, 0}, "rx": {0, 1, 0}, "tx": {0, 0, 1}, "both": {0, 1, 1}}

// devicePath returns the path of a link's device below /sys/devices; empty without a device.
func devicePath(link string) string {
	path, err := filepath.EvalSymlinks(filepath.Join("/sys/class/net", link, "device"))
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(path, "/sys/devices/")
}

// isFunction reports whether the device of a link is a virtual function of another device
// (Documentation/ABI/testing/sysfs-bus-pci).
func isFunction(link string) bool {
	_, err := os.Lstat(filepath.Join("/sys/class/net", link, "device/physfn"))
	return err == nil
}

// readSettings returns the values of the named settings of hardware. It omits settings that the
// driver does not have.
func readSettings(link string, names []string) map[string]string {
	out := map[string]string{}
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return out
	}
	defer tool.Close()
	for _, name := range names {
		if value, err := readSetting(tool, link, name); err == nil {
			out[name] = value
		}
	}
	return out
}

func readSetting(tool *ethtool.Ethtool, link, name string) (string, error) {
	switch name {
	case HardwareRX, HardwareTX:
		ring, err := tool.GetRing(link)
		if name == HardwareRX {
			return strconv.FormatUint(uint64(ring.RxPending), 10), err
		}
		return strconv.FormatUint(uint64(ring.TxPending), 10), err
	case HardwarePause:
		pause, err := tool.GetPause(link)
		if pause.Autoneg != 0 {
			return "auto", err
		}
		return nameOf(pauseModes, [3]uint32{0, pause.RxPause, pause.TxPause}), err
	case HardwareWake:
		wake, err := tool.GetWakeOnLan(link)
		if mode := nameOf(wakeFlags, wake.Opts); mode != "" || err != nil {
			return mode, err
		}
		return strconv.FormatUint(uint64(wake.Opts), 10), nil // several modes: their flags
	case HardwareFunctions:
		b, err := os.ReadFile(functionsPath(link))
		return strings.TrimSpace(string(b)), err
	}
	features, err := tool.FeaturesWithState(link)
	if err != nil {
		return "", err
	}
	state, known := features[strings.TrimPrefix(name, HardwareOffload)]
	if !known {
		return "", unix.EOPNOTSUPP
	}
	return onOff(state.Active), nil
}

func functionsPath(link string) string {
	return filepath.Join("/sys/class/net", link, "device/sriov_numvfs")
}

// setHardware changes a setting and reads it again. It fails if the driver does not have the
// setting, or if the value is not the wanted value after the change. The kernel returns no error
// for an offload that the driver cannot turn on.
func setHardware(o Op) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer tool.Close()
	before, err := readSetting(tool, o.Link, o.Name)
	switch {
	case err == nil && before == o.Value:
		return nil
	case err == nil:
		err = writeSetting(tool, o)
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the driver has no such setting: %w", err)
	}
	if err != nil {
		return err
	}
	if after, err := readSetting(tool, o.Link, o.Name); err != nil || after != o.Value {
		return fmt.Errorf("the driver does not accept this value; it has %s", after)
	}
	return nil
}

func writeSetting(tool *ethtool.Ethtool, o Op) error {
	switch o.Name {
	case HardwareRX, HardwareTX:
		ring, err := tool.GetRing(o.Link)
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(o.Value, 10, 32)
		if err != nil {
			return err
		}
		most := ring.RxMaxPending
		if o.Name == HardwareRX {
			ring.RxPending = uint32(n)
		} else {
			most, ring.TxPending = ring.TxMaxPending, uint32(n)
		}
		if uint32(n) > most {
			return fmt.Errorf("the hardware has at most %d entries", most)
		}
		_, err = tool.SetRing(o.Link, ring)
		return err
	case HardwarePause:
		pause, err := tool.GetPause(o.Link)
		if err != nil {
			return err
		}
		mode := pauseModes[o.Value]
		pause.Autoneg, pause.RxPause, pause.TxPause = mode[0], mode[1], mode[2]
		if o.Value == "auto" {
			pause.Autoneg, pause.RxPause, pause.TxPause = 1, 1, 1
		}
		_, err = tool.SetPause(o.Link, pause)
		return err
	case HardwareWake:
		wake, err := tool.GetWakeOnLan(o.Link)
		if err != nil {
			return err
		}
		flags, known := wakeFlags[o.Value]
		if !known { // the flags of several modes, as readSetting has returned them
			n, err := strconv.ParseUint(o.Value, 10, 32)
			if err != nil {
				return err
			}
			flags = uint32(n)
		}
		wake.Opts = flags
		_, err = tool.SetWakeOnLan(o.Link, wake)
		return err
	case HardwareFunctions:
		return setFunctions(o)
	}
	return tool.Change(o.Link, map[string]bool{strings.TrimPrefix(o.Name, HardwareOffload): o.Value == onOff(true)})
}

// setFunctions sets the number of virtual functions. It first sets the number to 0, because the
// kernel accepts a new number only after 0 (Documentation/PCI/pci-iov-howto.rst).
func setFunctions(o Op) error {
	if o.Value != "0" {
		if err := os.WriteFile(functionsPath(o.Link), []byte("0"), 0); err != nil {
			return err
		}
	}
	return os.WriteFile(functionsPath(o.Link), []byte(o.Value), 0)
}
