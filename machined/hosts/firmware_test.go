package hosts

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/orlop-os/orlop/pkg/admission/inventory"
)

// hostInterface returns an SMBIOS record of type 42 (a host interface of a controller) with one
// protocol record, which has the type protocol and the content data.
func hostInterface(protocol byte, data []byte) []byte {
	body := append([]byte{interfaceNetwork, 2, 0xaa, 0xbb, 1, protocol, byte(len(data))}, data...)
	return append([]byte{42, byte(4 + len(body)), 0x2a, 0}, body...)
}

// overIP returns the data of the protocol Redfish over IP.
func overIP(format byte, address []byte, port uint16) []byte {
	data := make([]byte, 91)
	data[51] = format
	copy(data[52:], address)
	data[84], data[85] = byte(port), byte(port>>8)
	return data
}

// TestRedfishAddress checks the address of the controller that an SMBIOS record contains; "" if the
// record contains none or is damaged.
func TestRedfishAddress(t *testing.T) {
	four := []byte{169, 254, 1, 1}
	six := append([]byte{0xfe, 0x80}, make([]byte, 14)...)
	six[15] = 1
	good := hostInterface(protocolRedfish, overIP(formatIPv4, four, 443))
	otherInterface := append([]byte{}, good...)
	otherInterface[4] = 0x02
	long := append([]byte{}, good...)
	long[1] = 255
	two := append(append([]byte{42, 0, 0, 0, interfaceNetwork, 0, 2}, 3, 1, 0xcc), protocolRedfish, 91)
	two = append(two, overIP(formatIPv4, four, 8443)...)
	two[1] = byte(len(two))
	for name, c := range map[string]struct {
		record []byte
		want   string
	}{
		"IPv4":                       {good, "169.254.1.1"},
		"with strings after it":      {append(good, "eth0\x00\x00"...), "169.254.1.1"},
		"another port":               {hostInterface(protocolRedfish, overIP(formatIPv4, four, 8443)), "169.254.1.1:8443"},
		"IPv6":                       {hostInterface(protocolRedfish, overIP(formatIPv6, six, 0)), "fe80::1"},
		"the second protocol record": {two, "169.254.1.1:8443"},
		"no address":                 {hostInterface(protocolRedfish, overIP(formatIPv4, nil, 443)), ""},
		"unknown format":             {hostInterface(protocolRedfish, overIP(0, four, 443)), ""},
		"another protocol":           {hostInterface(2, overIP(formatIPv4, four, 443)), ""},
		"a short protocol record":    {hostInterface(protocolRedfish, overIP(formatIPv4, four, 443)[:80]), ""},
		"another interface":          {otherInterface, ""},
		"another type":               {append([]byte{41}, good[1:]...), ""},
		"a length beyond the end":    {long, ""},
		"cut off":                    {good[:20], ""},
		"empty":                      {nil, ""},
	} {
		if got := redfishAddress(c.record); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// FuzzRedfishAddress checks that no record causes a panic or a long address.
func FuzzRedfishAddress(f *testing.F) {
	f.Add(hostInterface(protocolRedfish, overIP(formatIPv4, []byte{169, 254, 1, 1}, 443)))
	f.Add([]byte{42, 7, 0, 0, 0x40, 0, 255})
	f.Fuzz(func(t *testing.T, record []byte) {
		if a := redfishAddress(record); len(a) > 64 {
			t.Errorf("an address of %d characters", len(a))
		}
	})
}

func TestReadFirmware(t *testing.T) {
	sys := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(sys, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := ReadFirmware(sys, inventory.Host{CPUs: 2}); !reflect.DeepEqual(got, inventory.Host{CPUs: 2, SecureBoot: "unsupported"}) {
		t.Errorf("without firmware tables: %+v", got)
	}
	write("class/dmi/id/product_serial", "SN-1\n")
	write("class/dmi/id/product_uuid", "6F1F6C2E-0000-4000-8000-000000000001\n")
	write("class/dmi/id/sys_vendor", "QEMU\n")
	write("class/dmi/id/product_name", "Standard PC (Q35 + ICH9, 2009)\n")
	write("class/dmi/id/bios_version", "2025.02\n")
	write("firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "\x06\x00\x00\x00\x01")
	write("firmware/dmi/entries/42-0/raw", string(hostInterface(protocolRedfish, overIP(formatIPv4, []byte{169, 254, 1, 1}, 443))))
	want := inventory.Host{Serial: "SN-1", UUID: "6f1f6c2e-0000-4000-8000-000000000001", Vendor: "QEMU", Product: "Standard PC (Q35 + ICH9, 2009)", Firmware: "2025.02", SecureBoot: "enabled", Controller: "169.254.1.1"}
	if got := ReadFirmware(sys, inventory.Host{}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	write("class/net/eth0/speed", "10000\n")
	write("class/net/eth1/speed", "-1\n")
	for link, want := range map[string]int{"eth0": 10000, "eth1": 0, "eth2": 0, "../net/eth0": 10000} {
		if got := ReadSpeed(sys, link); got != want {
			t.Errorf("%s: %d, want %d", link, got, want)
		}
	}
}
