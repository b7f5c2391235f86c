package clusterfile

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
)

// insertNames replaces the address of each machine by ${NAME}, in all documents.
func (f *File) insertNames() {
	names := map[netip.Addr]string{}
	for _, m := range f.Machines {
		if a, err := netip.ParseAddr(m.Address); err == nil {
			names[a.Unmap()] = "${" + m.Name + "}"
		}
	}
	f.eachText(func(_, text string) string { return replaceAddress(text, names) })
}

// replaceAddress returns the text with a name in place of an address. The text can be an address, a
// prefix, an address with a port, or a URL with an address and a port. Other texts do not change.
func replaceAddress(text string, names map[netip.Addr]string) string {
	if a, err := netip.ParseAddr(text); err == nil {
		if name := names[a.Unmap()]; name != "" {
			return name
		}
		return text
	}
	if host, bits, found := strings.Cut(text, "/"); found && !strings.Contains(bits, "/") {
		if a, err := netip.ParseAddr(host); err == nil && names[a.Unmap()] != "" {
			return names[a.Unmap()] + "/" + bits
		}
	}
	scheme, rest, url := strings.Cut(text, "://")
	if !url {
		scheme, rest = "", text
	} else {
		scheme += "://"
	}
	authority, path, hasPath := strings.Cut(rest, "/")
	host, port, err := net.SplitHostPort(authority)
	if err != nil {
		return text
	}
	a, err := netip.ParseAddr(host)
	if err != nil || names[a.Unmap()] == "" {
		return text
	}
	out := scheme + names[a.Unmap()] + ":" + port
	if hasPath {
		out += "/" + path
	}
	return out
}

// placeholder matches ${NAME}.
var placeholder = regexp.MustCompile(`\$\{([a-z0-9][a-z0-9.-]*)\}`)

// insertAddresses returns a copy of the file with the address of each machine in place of ${NAME}.
// An unknown name is an error, but not in an add-on: its texts can use ${…} for another purpose.
func (f *File) insertAddresses() (*File, error) {
	out := f.clone()
	addresses := map[string]string{}
	for _, m := range out.Machines {
		addresses[m.Name] = m.Address
	}
	var unknown error
	out.eachText(func(path, text string) string {
		return placeholder.ReplaceAllStringFunc(text, func(found string) string {
			address, known := addresses[placeholder.FindStringSubmatch(found)[1]]
			switch {
			case !known && !strings.HasPrefix(path, "Addon[") && unknown == nil:
				unknown = fmt.Errorf("%s: names %s, and machines has no machine of this name", path, found)
			case known && strings.Contains(address, ":") && strings.Contains(text, found+":"):
				return "[" + address + "]"
			case known:
				return address
			}
			return found
		})
	})
	return out, unknown
}
