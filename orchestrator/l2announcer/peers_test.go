package l2announcer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
)

// TestPeers replays the packets that a node hears of a peer, step by step: ! an announcement, +
// another packet, . none, _ the node stood still for a second, and - for three. The result of each
// step: h the peer is heard, ? it is heard and solicited, s it is silent, b the node relies on the
// API server; in capital letters when the node has to announce its addresses again.
func TestPeers(t *testing.T) {
	for name, c := range map[string]struct{ heard, want string }{
		"announced":            {"!....!....!....!", "hhhhhhhhhhhhhhhh"},
		"from the first":       {"..!.....!", "bbhhhhhhh"},
		"one was lost":         {"!....!.........!", "hhhhhhhhhhh????h"},
		"gone":                 {"!.............", "hhhhhh????ssss"},
		"busy, and asked":      {"!.......+.....+....!", "hhhhhh??hhhhhh" + "hhhhhh"},
		"never there":          {"..............", "bbbbbbbbbbssss"},
		"only its kernel":      {"..+....+.....+.", "bbbbbbbbbbsssss"},
		"back":                 {"!.............!.", "hhhhhh????ssssHh"},
		"kernel, not back":     {"!.............+.", "hhhhhh????ssssss"},
		"a new one":            {"..............!.", "bbbbbbbbbbssssHh"},
		"the node stood still": {"!....__........", "hhhhh???sssssss"}, // two steps count
		"stood still for long": {"!---!", "hHH?h"},
		"its kernel for long":  {"!" + strings.Repeat("+", 160), strings.Repeat("h", 155) + "????ss"},
		"its kernel, and back": {"!" + strings.Repeat("+", 140) + "!" + strings.Repeat("+", 100), strings.Repeat("h", 242)},
	} {
		t.Run(name, func(t *testing.T) {
			others := []Node{{Name: "other", Addresses: []netip.Addr{vip4}}}
			var h peerState
			now := time.Unix(1000, 0)
			got := ""
			for _, what := range c.heard {
				var claims []neighbor.SeenAddress
				switch what {
				case '!', '+':
					claims = []neighbor.SeenAddress{{Address: vip4.Next(), Announced: true}, {Address: vip4, MAC: other, Announced: what == '!'}}
				case '_':
					now = now.Add(time.Second)
				case '-':
					now = now.Add(3 * time.Second)
				}
				var do peerActions
				h, do = h.step(now, others, claims)
				now = now.Add(neighbor.StepInterval)
				letter := "h"
				switch _, heard := h.heard["other"]; {
				case len(do.solicit) > 0:
					letter = "?"
				case h.silent("other"):
					letter = "s"
				case !heard:
					letter = "b"
				}
				if do.reannounce {
					letter = strings.ToUpper(letter)
				}
				got += letter
			}
			if got != c.want {
				t.Errorf("%s\nis     %s\nwanted %s", c.heard, got, c.want)
			}
		})
	}
}

// TestAnnounceSelf checks that a node with peers announces itself each second, and at once after it
// was away or a peer is back.
func TestAnnounceSelf(t *testing.T) {
	others := []Node{{Name: "other", Addresses: []netip.Addr{vip4}}}
	var h peerState
	var said []string
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
			said = append(said, fmt.Sprint(int(m.at)))
		}
	}
	// At 2700 a peer is back, at 5000 the node was away, and at 3000 the clock goes backwards.
	if want := []string{"100", "1100", "2100", "2700", "5000", "3000"}; !slices.Equal(said, want) {
		t.Errorf("at %v, want %v", said, want)
	}
}
