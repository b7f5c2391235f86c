package lldp

import (
	"cmp"
	"slices"
	"time"
)

const (
	// maxNeighbors is the number of neighbors of a link. A cable has a single neighbor; more are
	// visible through a device that forwards LLDP.
	maxNeighbors = 8
	// maxTTL bounds the time for which a frame is valid, because a frame can come from anywhere.
	// The default of switches is 120 s.
	maxTTL = time.Hour
)

// withNeighbor returns the neighbors of all links after a frame from n, sorted. A neighbor is a
// port of a chassis on a link. If the table of a link is full, the neighbor that expires first is
// dropped, so forged frames do not exclude the switch for long.
func withNeighbor(all []Neighbor, n Neighbor, now time.Time) []Neighbor {
	var table, others []Neighbor // of the link, of the other links
	for _, o := range all {
		switch {
		case o.Link != n.Link:
			others = append(others, o)
		case (o.Chassis != n.Chassis || o.Port != n.Port) && now.Before(o.Expires):
			table = append(table, o)
		}
	}
	if n.TTL > 0 {
		if len(table) >= maxNeighbors {
			slices.SortFunc(table, func(a, b Neighbor) int { return a.Expires.Compare(b.Expires) })
			table = table[1:]
		}
		n.Expires = now.Add(min(time.Duration(n.TTL)*time.Second, maxTTL))
		table = append(table, n)
	}
	all = append(others, table...)
	slices.SortFunc(all, order)
	return all
}

// expire returns the neighbors that have not expired, and the time until the next of them expires;
// 0 without a neighbor.
func expire(table []Neighbor, now time.Time) (left []Neighbor, next time.Duration) {
	for _, n := range table {
		in := n.Expires.Sub(now)
		if in <= 0 {
			continue
		}
		left = append(left, n)
		if next == 0 || in < next {
			next = in
		}
	}
	return left, next
}

func order(a, b Neighbor) int {
	return cmp.Or(cmp.Compare(a.Link, b.Link), cmp.Compare(a.Chassis, b.Chassis), cmp.Compare(a.Port, b.Port))
}
