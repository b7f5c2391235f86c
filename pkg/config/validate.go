package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// validate checks what UnmarshalText and the decoder cannot check: names, ranges, and
// contradictions between fields. It skips values that could not be parsed.
func validate(cfg *Config, r *report) {
	switch {
	case !r.origins["Machine"].IsDefault():
		machineValidator{checks{r}, cfg.Cluster}.machine(&cfg.Machine)
	case !r.broken["kind"]: // a broken kind can be a mistyped "Machine"
		r.add(0, 0, "Machine", wrong{reason: "there is no Machine document", expected: "exactly one"})
	}
	if cfg.Cluster != nil {
		clusterValidator{checks{r}, cfg}.cluster(cfg.Cluster)
	}
	networkValidator{checks{r}, cfg}.network(&cfg.Network)
	if cfg.Cluster != nil {
		v := crossValidator{r, cfg}
		v.authorities()
		v.overlaps()
		v.inPools()
	}
	volumeValidator{checks{r}, cfg}.volumes()
	addonValidator{checks{r}, cfg}.addons()
}

// checks validates values that several kinds of documents contain: names, URLs, credentials and
// certificates.
type checks struct{ *report }

// objectName validates a name that becomes a host name: a DNS subdomain of at most 63 characters.
// The kubelet stores the name in a label, which permits 63 characters. Linux permits 64 bytes for a
// host name (HOST_NAME_MAX).
func (v checks) objectName(path, name string) {
	err := hostname(name)
	if err == nil && len(name) > 63 {
		err = fmt.Errorf("has %d characters", len(name))
	}
	if err == nil || name == "" {
		return
	}
	w := wrong{reason: fmt.Sprintf("%s %v", quote(name), err), expected: `lower-case letters, digits, "-" and ".", beginning and ending with a letter or digit, at most 63 characters`}
	if guess := strings.ReplaceAll(strings.ToLower(name), "_", "-"); len(guess) <= 63 && hostname(guess) == nil {
		w.nearest = guess
	}
	v.on(path, w)
}

func (v checks) namespaces(path string, names []string) {
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", path, i)
		if err := dnsLabel(name); err != nil && name != "" {
			v.on(at, wrong{reason: fmt.Sprintf("%s %v", quote(name), err), expected: "the name of a namespace (DNS label)"})
		}
		if slices.Contains(names[:i], name) && name != "" {
			v.on(at, wrong{reason: fmt.Sprintf("%s is given twice", quote(name))})
		}
	}
}

// unique checks that no earlier item of the same list has the same text as item i. seen maps the
// texts of the earlier items to their indices.
func (v checks) unique(path, list, text string, i int, seen map[string]int) {
	if text == "" {
		return
	}
	if j, twice := seen[text]; twice {
		v.on(path, wrong{reason: fmt.Sprintf("the same as in %s[%d]", list, j), expected: "each once"})
		return
	}
	seen[text] = i
}

func (v checks) duration(path string, d Duration, most time.Duration) {
	if d <= 0 || time.Duration(d) > most {
		v.on(path, wrong{reason: fmt.Sprintf("%s is out of range", d), expected: fmt.Sprintf("more than 0s, at most %s", Duration(most))})
	}
}

func (v checks) webhook(path, address string, client *CertKey) {
	v.https(path+".url", address)
	v.client(path+".client", client)
}

// https validates the HTTPS URL of a service.
func (v checks) https(path, address string) {
	if address == "" {
		return
	}
	const want = "https://host/path, without user, query and fragment"
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "":
		v.on(path, wrong{reason: "not a URL", expected: want})
	case u.Scheme != "https":
		v.on(path, wrong{reason: fmt.Sprintf("the scheme is %s", quote(u.Scheme)), expected: want})
	case u.User != nil:
		v.on(path, wrong{reason: "it contains a user", expected: want})
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(address, "#"):
		v.on(path, wrong{reason: "it contains a query or a fragment", expected: want})
	default:
		if err := hostOrAddr(strings.ToLower(u.Hostname())); err != nil {
			v.on(path, wrong{reason: "the host " + err.Error(), expected: want})
		}
	}
}

// sameFamily reports whether two ranges have the same address family.
func sameFamily(a, b netip.Prefix) bool { return a.Addr().Is4() == b.Addr().Is4() }

func family(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "IPv4"
	}
	return "IPv6"
}
