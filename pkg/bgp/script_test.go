package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest). A script has one session. The output has
// the messages that the session sends, with the time since the start of the command, and the reason
// of its end.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) *scripted { return &scripted{t: t} }, scripttest.Commands[*scripted]{
		// begin 64512 peer 64513 hold 9s via 192.0.2.11: this machine starts a session as AS 64512
		"begin": (*scripted).begin,
		// open 64513 hold 90s [id ID] [with ipv4 ipv6 octets]: the peer sends an open message
		"open":      (*scripted).open,
		"keepalive": message(KeepaliveMessage),
		"update":    message(UpdateMessage),
		// refresh: the peer sends a message that a session ignores
		"refresh": message(5),
		// notification 6 2: the peer sends a notification
		"notification": (*scripted).notification,
		// want 192.0.2.70/32: this machine announces these routes from now on
		"want": (*scripted).routes,
		// run 9s: time passes without a message of the peer
		"run": (*scripted).run,
		// establish: the peer sends an open message with all capabilities, and a keepalive
		"establish": (*scripted).establish,
	})
}

type scripted struct {
	t       *testing.T
	session session
	want    []netip.Prefix
	since   time.Time
	out     []string
}

func (m Message) String() string {
	switch u := m.Update; m.Kind {
	case OpenMessage:
		return fmt.Sprintf("open %d hold %s id %s", m.Open.ASN, m.Open.HoldTime, m.Open.RouterID)
	case KeepaliveMessage:
		return "keepalive"
	case NotificationMessage:
		return "notification " + m.Notification.String()
	default:
		switch {
		case len(u.Announced) > 3:
			return fmt.Sprintf("announce %d routes via %s", len(u.Announced), u.NextHop)
		case len(u.Announced) > 0:
			return fmt.Sprintf("announce %v via %s path %v", u.Announced, u.NextHop, u.Path)
		case len(u.Withdrawn) > 3:
			return fmt.Sprintf("withdraw %d routes", len(u.Withdrawn))
		case len(u.Withdrawn) > 0:
			return fmt.Sprintf("withdraw %v", u.Withdrawn)
		}
		return "end of the first routes"
	}
}

// note prints messages and an error, and checks that each message can be read by a peer.
func (s *scripted) note(all []Message, err error) {
	var f *failure
	if errors.As(err, &f) {
		all = append(all, Message{Kind: NotificationMessage, Notification: f.send})
	}
	for _, m := range all {
		b, err := m.encode(s.session.internal(), s.session.peer.FourOctets)
		if err != nil || len(b) > maxMessage {
			s.t.Fatalf("%s: %d octets, %v", m, len(b), err)
		}
		got, err := read(strings.NewReader(string(b)), true, s.session.peer.FourOctets)
		if err != nil || got.String() != m.String() {
			s.t.Fatalf("%s was read as %s, %v", m, got, err)
		}
		s.out = append(s.out, fmt.Sprintf("%s %s", time.Since(s.since), m))
	}
	if err != nil {
		s.out = append(s.out, fmt.Sprintf("%s end: %v", time.Since(s.since), err))
		s.session.expires = time.Time{}
	}
}

func (s *scripted) flush() string {
	out := strings.Join(s.out, "\n")
	s.out, s.since = nil, time.Now()
	return out
}

func (s *scripted) number(text string) uint32 {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		s.t.Fatal(err)
	}
	return uint32(n)
}

func (s *scripted) begin(args []string) string {
	s.since = time.Now()
	c := Config{ASN: s.number(args[0]), PeerASN: s.number(scripttest.Word(args, "peer")), RouterID: netip.MustParseAddr("192.0.2.11"),
		HoldTime: scripttest.Duration(s.t, scripttest.Word(args, "hold"))}
	for _, a := range scripttest.Words(args, "via") {
		c.NextHops = append(c.NextHops, netip.MustParseAddr(a))
	}
	next, out := begin(c, time.Now())
	s.session = next
	s.note(out, nil)
	return s.flush()
}

// receive handles a message of the peer, as running.step does.
func (s *scripted) receive(m Message) string {
	s.since = time.Now()
	next, out, err := s.session.receive(time.Now(), m)
	s.session = next
	if err == nil {
		next, updates := s.session.advertise(s.want)
		s.session, out = next, append(out, updates...)
	}
	s.note(out, err)
	return s.flush()
}

func (s *scripted) open(args []string) string {
	o := Open{ASN: s.number(args[0]), HoldTime: scripttest.Duration(s.t, scripttest.Word(args, "hold")), RouterID: netip.MustParseAddr("192.0.2.1")}
	if id := scripttest.Word(args, "id"); id != "" {
		o.RouterID = netip.MustParseAddr(id)
	}
	with := scripttest.Words(args, "with", "id")
	o.IPv4, o.IPv6, o.FourOctets = slices.Contains(with, "ipv4"), slices.Contains(with, "ipv6"), slices.Contains(with, "octets")
	return s.receive(Message{Kind: OpenMessage, Open: o})
}

func (s *scripted) establish(args []string) string {
	out := s.open([]string{fmt.Sprint(s.session.PeerASN), "hold", "90s", "with", "ipv4", "ipv6", "octets"})
	return out + "\n" + s.receive(Message{Kind: KeepaliveMessage})
}

// message returns the command of a message without content.
func message(k Kind) func(*scripted, []string) string {
	return func(s *scripted, _ []string) string { return s.receive(Message{Kind: k}) }
}

func (s *scripted) notification(args []string) string {
	return s.receive(Message{Kind: NotificationMessage, Notification: Notification{uint8(s.number(args[0])), uint8(s.number(args[1]))}})
}

func (s *scripted) routes(args []string) string {
	s.want = nil
	for _, a := range args {
		p, count, many := strings.Cut(a, "+")
		prefix := netip.MustParsePrefix(p)
		s.want = append(s.want, prefix)
		if !many {
			continue
		}
		for range s.number(count) {
			prefix = netip.PrefixFrom(prefix.Addr().Next(), prefix.Bits())
			s.want = append(s.want, prefix)
		}
	}
	s.since = time.Now()
	next, out := s.session.advertise(s.want)
	s.session = next
	s.note(out, nil)
	return s.flush()
}

func (s *scripted) run(args []string) string {
	s.since = time.Now()
	for end := time.Now().Add(scripttest.Duration(s.t, args[0])); ; {
		at := s.session.next()
		if at.After(end) || s.session.expires.IsZero() {
			time.Sleep(time.Until(end))
			return s.flush()
		}
		time.Sleep(time.Until(at))
		next, out, err := s.session.tick(time.Now())
		s.session = next
		s.note(out, err)
	}
}
