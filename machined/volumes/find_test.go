package volumes

import "testing"

// TestFindOnSeveralDisks checks that a second path to the disk of a volume is not a copy, and that a
// disk on USB with the same identifier is a copy.
func TestFindOnSeveralDisks(t *testing.T) {
	r := Record{Partition: id(1)}
	for _, c := range []struct {
		transport string
		found     bool
	}{{"sata", true}, {"usb", false}} {
		one, two := disk("/dev/sda", 8, own(1, 7, ext4)), disk("/dev/sdb", 8, own(1, 7, ext4))
		one.WWID, two.WWID, two.Transport = "naa.1", "naa.1", c.transport
		for _, disks := range [][]Disk{{one, two}, {two, one}} {
			p := &planner{have: Have{Disks: disks}}
			if l, reason := p.find(r); (l != nil) != c.found || (reason == "") != c.found {
				t.Errorf("the second disk is on %s: found %v, %q", c.transport, l, reason)
			}
		}
	}
}
