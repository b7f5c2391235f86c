package machineprovider

import "strings"

// SameUUID reports whether two UUIDs can be those of one machine. An empty UUID is unknown.
func SameUUID(a, b string) bool {
	return a == "" || b == "" || CanonicalUUID(a) == CanonicalUUID(b)
}

// CanonicalUUID returns one text for all forms of a UUID, in lower case. Some firmware writes the
// first three fields of the UUID in another byte order, so both orders have the same form.
func CanonicalUUID(uuid string) string {
	uuid = strings.ToLower(uuid)
	return min(uuid, swapped(uuid))
}

// swapped returns a UUID with the other byte order of its first three fields; the same text if it
// is no UUID.
func swapped(uuid string) string {
	f := strings.Split(uuid, "-")
	if len(f) != 5 || len(f[0]) != 8 || len(f[1]) != 4 || len(f[2]) != 4 {
		return uuid
	}
	turn := func(s string) string {
		out := ""
		for i := 0; i < len(s); i += 2 {
			out = s[i:i+2] + out
		}
		return out
	}
	return strings.Join([]string{turn(f[0]), turn(f[1]), turn(f[2]), f[3], f[4]}, "-")
}
