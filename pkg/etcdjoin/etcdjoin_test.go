package etcdjoin

import (
	"net/netip"
	"strings"
	"testing"
)

func addr(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }

func TestNext(t *testing.T) {
	self := Self{Name: "a", URL: "https://10.0.0.1:2380", First: true}
	second := Self{Name: "b", URL: "https://10.0.0.2:2380"}
	empty := func(n byte) PeerAnswer { return PeerAnswer{From: addr(n), State: NoData} }
	silent := func(n byte) PeerAnswer { return PeerAnswer{From: addr(n), Problem: "no route to host"} }
	serving := func(n byte, m ...Member) PeerAnswer { return PeerAnswer{From: addr(n), State: Serving, Members: m} }
	a := Member{ID: 1, Name: "a", URLs: []string{"https://10.0.0.1:2380"}}
	b := Member{ID: 2, Name: "b", URLs: []string{"https://10.0.0.2:2380"}}
	c := Member{ID: 3, Name: "c", URLs: []string{"https://10.0.0.3:2380"}}
	for name, tc := range map[string]struct {
		self      Self
		last, now []PeerAnswer
		want      Action
		why       string
	}{
		"alone":                                                                    {self, nil, nil, Bootstrap, "bootstraps etcd"},
		"all peers are empty":                                                      {self, []PeerAnswer{empty(2), empty(3)}, []PeerAnswer{empty(2), empty(3)}, Bootstrap, "bootstraps etcd"},
		"all peers are empty for the first time":                                   {self, nil, []PeerAnswer{empty(2), empty(3)}, Wait, "once more"},
		"a peer was silent in the previous round":                                  {self, []PeerAnswer{empty(2), silent(3)}, []PeerAnswer{empty(2), empty(3)}, Wait, "once more"},
		"other peers answered in the previous round":                               {self, []PeerAnswer{empty(2)}, []PeerAnswer{empty(2), empty(3)}, Wait, "once more"},
		"a silent peer may have data":                                              {self, nil, []PeerAnswer{empty(2), silent(3)}, Wait, "10.0.0.3 (no route to host)"},
		"this machine is not the first":                                            {second, []PeerAnswer{empty(1)}, []PeerAnswer{empty(1)}, Wait, "first machine"},
		"joins the cluster":                                                        {second, nil, []PeerAnswer{serving(1, a)}, Add, "joins through 10.0.0.1"},
		"joins although another peer is silent":                                    {second, nil, []PeerAnswer{silent(3), serving(1, a, c)}, Add, "joins through 10.0.0.1"},
		"the first machine has lost its data":                                      {self, nil, []PeerAnswer{serving(2, a, b, c), silent(3)}, Remove, "the member 1"},
		"a member has this machine's address":                                      {Self{Name: "new", URL: "https://10.0.0.3:2380"}, nil, []PeerAnswer{serving(1, a, b, c)}, Remove, "the member 3"},
		"a member has this machine's name, and it answers":                         {Self{Name: "c", URL: "https://10.0.0.4:2380"}, nil, []PeerAnswer{serving(1, a, b, c), serving(3, a, b, c)}, Wait, "unique name"},
		"a member has this machine's name, and its address is not among the peers": {Self{Name: "c", URL: "https://10.0.0.4:2380"}, nil, []PeerAnswer{serving(1, a, b, c)}, Wait, "https://10.0.0.3:2380"},
		"a member has this machine's name, and it is silent":                       {Self{Name: "c", URL: "https://10.0.0.4:2380"}, []PeerAnswer{silent(3)}, []PeerAnswer{serving(1, a, b, c), silent(3)}, Wait, "orlopctl etcd remove"},
		"a member has this machine's name, and it is silent for the first time":    {Self{Name: "c", URL: "https://10.0.0.4:2380"}, []PeerAnswer{serving(3, a, b, c)}, []PeerAnswer{serving(1, a, b, c), silent(3)}, Wait, "unique name"},
		"two clusters":                                                             {second, nil, []PeerAnswer{serving(1, a), {From: addr(3), State: Serving, Cluster: 7, Members: []Member{c}}}, Wait, "10.0.0.1 and 10.0.0.3 belong to different clusters (0, 7)"},
		"this machine was added as a learner, but never started":                   {second, nil, []PeerAnswer{serving(1, a, Member{ID: 9, URLs: b.URLs, Learner: true})}, Remove, "the member 9"},
		"this machine is the only voter":                                           {self, nil, []PeerAnswer{serving(2, a, Member{ID: 2, Name: "b", URLs: b.URLs, Learner: true})}, Wait, "only etcd member"},
		"without a quorum":                                                         {self, nil, []PeerAnswer{{From: addr(2), State: NoQuorum, Problem: "1 of 3"}, silent(3)}, Wait, "1 of 3"},
		"a peer with a quorum, and a peer without":                                 {self, nil, []PeerAnswer{{From: addr(2), State: NoQuorum}, serving(3, b, c)}, Add, "10.0.0.3"},
	} {
		got := Next(tc.self, tc.last, tc.now)
		if got.Action != tc.want || !strings.Contains(got.Reason, tc.why) {
			t.Errorf("%s: got %d: %s, want %d: …%s…", name, got.Action, got.Reason, tc.want, tc.why)
		}
	}
}

func TestMayRemove(t *testing.T) {
	for _, tc := range []struct {
		voters, answering int
		answers           bool
		want              string // empty if permitted
	}{
		{1, 1, true, "only member"},
		{2, 2, true, ""},
		{2, 1, false, "1 of 2 members answer, 2 are required"},
		{3, 3, true, ""},
		{3, 2, false, ""},
		{3, 2, true, "2 of 3 members answer; without it there would be 2 members, of which 2 are required, and only 1 would"},
		{5, 3, true, "of which 3 are required, and only 2 would"},
		{5, 4, true, ""},
	} {
		err := MayRemove(tc.voters, tc.answering, tc.answers)
		switch {
		case tc.want == "" && err != nil, tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%+v: %v", tc, err)
		}
	}
	for voters, want := range map[int]int{1: 0, 2: 0, 3: 1, 4: 1, 5: 2} {
		if got := FailureTolerance(voters); got != want {
			t.Errorf("%d members: %d may be away, want %d", voters, got, want)
		}
	}
}

// TestMayRestart checks that MayRestart rejects a long downtime of a member if the downtime would
// end the quorum. It permits the downtime if there is no quorum, or only a single member.
func TestMayRestart(t *testing.T) {
	for _, c := range []struct {
		voters, answering int
		may               bool
	}{{1, 1, true}, {2, 2, false}, {2, 1, true}, {3, 3, true}, {3, 2, false}, {3, 1, true}, {5, 4, true}, {5, 3, false}} {
		err := MayRestart(c.voters, c.answering)
		if (err == nil) != c.may {
			t.Errorf("%d of %d: %v", c.answering, c.voters, err)
		}
		if leaves := MayRemove(c.voters, c.answering, true) == nil; err != nil && leaves != strings.Contains(err.Error(), "reset --wipe all") {
			t.Errorf("%d of %d: the error suggests `reset --wipe all` although etcd would reject the removal, or omits this remedy: %v", c.answering, c.voters, err)
		}
	}
}
