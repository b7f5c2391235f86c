package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/golden"
)

// TestArguments checks the arguments of QEMU for a machine with all options, a machine with a
// kernel, a machine with several kinds of disks, and a machine with Secure Boot.
func TestArguments(t *testing.T) {
	full := MachineSpec{Name: "cp1", Dir: "/m/a,b", Disks: []Disk{{}, {Name: "config", ReadOnly: true}, {Name: "r", Record: true}, {Name: "f", Forget: true}}, Watchdog: true,
		Graphics: true, RTC: time.Unix(0, 0), Identity: Identity{UUID: "6f1f6c2e-0000-4000-8000-000000000001", Serial: "SN,1"}, Channels: []string{"orlop.stdout"},
		QEMU: QEMU{Args: []string{"-d", "guest_errors"}, NoReboot: true}, Firmware: Firmware{Code: "testdata/arguments.golden", Vars: "testdata/arguments.golden"}}
	direct := MachineSpec{Name: "kernel", Dir: "/m", Kernel: Kernel{Image: "testdata/arguments.golden", Append: "console=ttyS0 quiet"}, MemoryMiB: 512, CPUs: 1}
	media := MachineSpec{Name: "media", Dir: "/m", NIC: NIC{Network: new(Network), More: 1},
		Disks:    []Disk{{Bus: BusNVMe}, {Bus: BusSATA}, {Name: "cd", Bus: BusCD, Image: "/images/a.iso"}, {Name: "stick", Bus: BusUSB, Image: "/images/a.iso"}},
		Firmware: Firmware{Code: "testdata/arguments.golden", Vars: "testdata/arguments.golden", Boot: []string{"cd", "disk0", BootHTTP}}}
	secure := MachineSpec{Name: "secure", Dir: "/m", Disks: []Disk{{}}, TPM: true,
		Firmware: Firmware{Code: "testdata/arguments.golden", Vars: "testdata/arguments.golden", SecureBoot: true}}
	var b strings.Builder
	for _, spec := range []MachineSpec{full, direct, media, secure} {
		spec, err := spec.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		fds := inherited{console: 3, qmp: 4, channels: []int{5}}
		if spec.TPM {
			fds.tpm = 9
		}
		if spec.Name != "kernel" {
			fds.nics = []int{6, 7}[:1+spec.NIC.More]
		}
		for _, a := range spec.arguments(fds, []macAddr{{0x52, 0x54, 0x4f, 77, 0, 11}, {0x52, 0x54, 0x4f, 77, 0, 12}}) {
			if strings.HasPrefix(a, "-") {
				fmt.Fprintf(&b, "\n%s", a)
			} else {
				fmt.Fprintf(&b, " %q", a)
			}
		}
		b.WriteString("\n")
	}
	golden.Assert(t, b.String(), "arguments.golden")
}

// TestDiskIsASparseCopy checks that makeDisk creates a sparse disk with the content of the image,
// does not change an existing disk, and never makes a disk smaller than its image.
func TestDiskIsASparseCopy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	image, disk := filepath.Join(dir, "image.raw"), filepath.Join(dir, "disk0.raw")
	file, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, 40 << 20} {
		if _, err := file.WriteAt(bytes.Repeat([]byte("deck"), 4096), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(file.Truncate(64<<20), file.Close()); err != nil {
		t.Fatal(err)
	}
	if err := makeDisk(disk, image, 80<<20); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 80<<20 || !bytes.Equal(got[:len(want)], want) || len(bytes.Trim(got[len(want):], "\x00")) != 0 {
		t.Error("the disk is not the image followed by zeros")
	}
	var info syscall.Stat_t
	if err := syscall.Stat(disk, &info); err != nil {
		t.Fatal(err)
	}
	if used := info.Blocks * 512; used > 1<<20 {
		t.Errorf("the disk takes %d bytes for 32 KiB of data", used)
	}
	// A second call does not change an existing disk.
	if err := os.WriteFile(disk, []byte("written"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := makeDisk(disk, image, 80<<20); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(disk); err != nil || string(data) != "written" {
		t.Errorf("makeDisk has overwritten an existing disk (%v)", err)
	}
	small := filepath.Join(dir, "small.raw")
	if err := makeDisk(small, image, 1<<20); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(small); err != nil || info.Size() != 64<<20 {
		t.Errorf("a disk with a requested size below that of its image has not the size of the image: %v, %v", info, err)
	}
}

// TestConsole checks that a pattern matches a line that arrives in pieces, that the search begins
// at the given offset, and that the memory for the console is limited. The file has all output.
func TestConsole(t *testing.T) {
	c, err := openConsole(filepath.Join(t.TempDir(), consoleFile))
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	ctx := within(t, 10*time.Second)
	write := func(s string) {
		t.Helper()
		if _, err := c.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	found := make(chan string, 1)
	go func() {
		match, _, err := c.WaitFrom(ctx, 0, regexp.MustCompile(`identity sha256:(\w+)$`))
		found <- fmt.Sprint(match, err)
	}()
	write("one\r\ntwo\r\norlop: machine iden")
	write("tity sha256:")
	write("abcd")
	if got := <-found; got != "[identity sha256:abcd abcd] <nil>" {
		t.Errorf("the match in a line that was written in pieces is %s", got)
	}
	mark := c.Offset()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, _, err := c.WaitFrom(short, mark, regexp.MustCompile("one")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WaitFrom for a line before the offset returns %v, want a timeout", err)
	}
	if got := c.Tail(2); got != "two\norlop: machine identity sha256:abcd" {
		t.Errorf("Tail returns %q", got)
	}
	line := strings.Repeat("x", 1023) + "\n"
	for range consoleMemory/len(line) + 10 {
		write(line)
	}
	write("the end\n")
	if _, _, err := c.WaitFrom(ctx, mark, regexp.MustCompile("the end")); err != nil {
		t.Error(err)
	}
	if len(c.String()) > consoleMemory {
		t.Error("the console in memory exceeds its limit")
	}
	whole, err := os.ReadFile(c.Path())
	if err != nil || !strings.HasPrefix(string(whole), "one\r\n") || int64(len(whole)) != c.Offset() {
		t.Errorf("the file of the console has %d of %d bytes, %v", len(whole), c.Offset(), err)
	}
}

// TestAnalysis checks which addresses are inside the closed network, which belong to a group
// (multicast or broadcast), and which are outside.
func TestAnalysis(t *testing.T) {
	for addr, want := range map[string]place{
		"10.77.0.11": placeInside, "10.96.0.10": placeInside, "fe80::1": placeInside,
		"10.77.0.255": placeGroup, "255.255.255.255": placeGroup, "224.0.0.251": placeGroup, "ff02::1": placeGroup,
		"10.78.0.1": placeOutside, "127.0.0.1": placeOutside, "192.0.2.1": placeOutside, "2001:db8::1": placeOutside, "169.254.169.254": placeOutside,
	} {
		a := analysis{inside: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/24"), netip.MustParsePrefix("10.96.0.0/16")}}
		if got := a.place(netip.MustParseAddr(addr)); got != want {
			t.Errorf("the place of %s is %d, want %d", addr, got, want)
		}
	}
}

// TestCaptureOfWholeNetwork checks that the file contains the frames between machines with their
// true lengths, and that a truncated file can be read.
func TestCaptureOfWholeNetwork(t *testing.T) {
	file := filepath.Join(t.TempDir(), "capture.pcap")
	n := newTestNetwork(t, NetworkSpec{Capture: file})
	a, b := guest(t, n, "a"), guest(t, n, "b")
	if !hears(t, a, b, true) {
		t.Fatal("a does not reach b")
	}
	big := newFrame(1400)
	copy(big.eth(), b.mac[:])
	copy(big.eth()[6:], a.mac[:])
	copy(big.eth()[12:], []byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1})
	copy(big.eth()[38:], []byte{203, 0, 113, 9}) // an ARP request for an address outside
	a.port.receive(big)
	if _, err := n.CaptureFile(); err != nil {
		t.Fatal(err)
	}
	report, err := AnalyseCapture(file, n.Subnet())
	if err != nil {
		t.Fatal(err)
	}
	if report.Inside < 2 || len(report.Outside) != 1 {
		t.Fatalf("the report is %+v, want at least two frames inside, and one flow outside", report)
	}
	if f := report.Outside[0]; f.Protocol != "arp" || f.Dst.String() != "203.0.113.9" || f.Bytes != 1400 || !strings.Contains(f.String(), "203.0.113.9") {
		t.Errorf("the flow to the outside is %s, want the ARP request of 1400 bytes", f)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut.pcap")
	if err := os.WriteFile(cut, data[:len(data)-10], 0o600); err != nil {
		t.Fatal(err)
	}
	if short, err := AnalyseCapture(cut, n.Subnet()); err != nil || short.Frames != report.Frames-1 {
		t.Errorf("the report of a truncated capture is %+v, %v, want all complete frames", short, err)
	}
}
