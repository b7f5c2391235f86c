package l2announcer

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

// TestAnnounceSelf checks that a node with peers announces itself every second. It also announces
// itself at once when it continues after it stood still, when it hears a silent peer again, and
// when its clock has gone backwards.
func TestAnnounceSelf(t *testing.T) {
	others := []Node{{Name: "other", Addresses: []netip.Addr{vip4}}}
	var h peerState
	var announced []string
	hear := []neighbor.SeenAddress{{Address: vip4, Announced: true}}
	for _, m := range []struct {
		at     time.Duration
		others []Node
		heard  []neighbor.SeenAddress
	}{
		{0, nil, nil}, {100, others, nil}, {200, others, nil}, {1000, others, nil}, {1100, others, nil}, {1300, others, nil}, {1600, others, nil},
		{1900, others, nil}, {2100, others, nil}, {2400, others, nil}, {2700, others, hear}, {2900, others, nil}, {5000, others, nil}, {3000, others, nil},
	} {
		var do peerActions
		h, do = h.step(time.Unix(1000, 0).Add(m.at*time.Millisecond), m.others, m.heard)
		if do.announceSelf {
			announced = append(announced, fmt.Sprint(int(m.at)))
		}
	}
	// At 2700 the silent peer is heard again, at 5000 the node had stood still, and at 3000 the
	// clock goes backwards.
	if want := []string{"100", "1100", "2100", "2700", "5000", "3000"}; !slices.Equal(announced, want) {
		t.Errorf("announces itself at %v ms, want %v", announced, want)
	}
}
