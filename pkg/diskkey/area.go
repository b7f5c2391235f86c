package diskkey

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
)

// area is the JSON area of a header, with all fields that formatCommand and the later commands
// write (LUKS2 On-Disk Format Specification 1.1.4, section 3).
type area struct {
	Keyslots map[string]keyslot `json:"keyslots"`
	Tokens   map[string]token   `json:"tokens"`
	Segments map[string]segment `json:"segments"`
	Digests  map[string]digest  `json:"digests"`
	Config   struct {
		Size     string `json:"json_size"`
		Keyslots string `json:"keyslots_size"`
	} `json:"config"`
}

type keyslot struct {
	Type    string `json:"type"`
	KeySize int    `json:"key_size"`
	Split   struct {
		Type    string `json:"type"`
		Stripes int    `json:"stripes"`
		Hash    string `json:"hash"`
	} `json:"af"`
	Area struct {
		Type       string `json:"type"`
		Offset     string `json:"offset"`
		Size       string `json:"size"`
		Encryption string `json:"encryption"`
		KeySize    int    `json:"key_size"`
	} `json:"area"`
	KDF kdf `json:"kdf"`
}

type kdf struct {
	Type       string `json:"type"`
	Hash       string `json:"hash"`
	Iterations int    `json:"iterations"`
	Salt       string `json:"salt"`
}

type segment struct {
	Type       string `json:"type"`
	Offset     string `json:"offset"`
	Size       string `json:"size"`
	Tweak      string `json:"iv_tweak"`
	Encryption string `json:"encryption"`
	Sector     int    `json:"sector_size"`
}

type digest struct {
	Type       string   `json:"type"`
	Keyslots   []string `json:"keyslots"`
	Segments   []string `json:"segments"`
	Hash       string   `json:"hash"`
	Iterations int      `json:"iterations"`
	Salt       string   `json:"salt"`
	Digest     string   `json:"digest"`
}

// The values that formatCommand requests.
const (
	slotSize     = 258048 // size of a key slot on the disk, in bytes
	cipher       = "aes-xts-plain64"
	iterations   = 1000
	cipherSize   = 64 // bytes
	keyslotsSize = HeaderSize - 2*copySize
)

// parseArea parses the JSON area. It fails if the area has a field that the type area does not
// have, also in another case, which encoding/json would accept: cryptsetup reads the same text with
// another parser.
func parseArea(text []byte) (a area, err error) {
	whole, err := generic(text)
	if err != nil {
		return a, err
	}
	// Of fields that occur twice, the last is in whole.
	once, err := json.Marshal(whole)
	if err != nil {
		return a, err
	}
	d := json.NewDecoder(bytes.NewReader(once))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return a, fmt.Errorf("cannot parse its metadata: %w", err)
	}
	back, err := json.Marshal(a)
	if err != nil {
		return a, err
	}
	same, err := generic(back)
	if err == nil && !reflect.DeepEqual(whole, same) {
		err = errors.New("its metadata have other fields")
	}
	return a, err
}

func generic(text []byte) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		return nil, fmt.Errorf("cannot parse its metadata: %w", err)
	}
	if d.More() {
		return nil, errors.New("cannot parse its metadata: text after the end")
	}
	return value, nil
}

// check accepts exactly the areas that the commands of this package make, and returns the key slots
// in use. All else is refused: another cipher (also none), another segment, another layout, a slow
// key derivation, and requirements.
func (a area) check() (slots []int, err error) {
	names := slices.Sorted(maps.Keys(a.Keyslots))
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil || n < 0 || n > 2 || strconv.Itoa(n) != name {
			return nil, fmt.Errorf("key slot %.10q is none of 0, 1 and 2", name)
		}
		if err := a.Keyslots[name].check(); err != nil {
			return nil, fmt.Errorf("key slot %d: %w", n, err)
		}
		slots = append(slots, n)
	}
	if a.overlaps() {
		return nil, errors.New("two key slots overlap")
	}
	s, d := a.Segments["0"], a.Digests["0"]
	if want := (segment{Type: "crypt", Offset: strconv.Itoa(HeaderSize), Size: "dynamic", Tweak: "0", Encryption: cipher, Sector: 4096}); len(a.Segments) != 1 || s != want {
		return nil, errors.New("its segment is another one")
	}
	if len(a.Digests) != 1 || d.Type != "pbkdf2" || d.Hash != "sha256" || d.Iterations != iterations || !slices.Equal(d.Segments, []string{"0"}) || !hasBytes(d.Salt, 32) || !hasBytes(d.Digest, 32) {
		return nil, errors.New("its digest is another one")
	}
	if !slices.Equal(slices.Sorted(slices.Values(d.Keyslots)), names) {
		return nil, errors.New("its digest is for other key slots")
	}
	if a.Config.Size != strconv.Itoa(copySize-binarySize) || a.Config.Keyslots != strconv.Itoa(keyslotsSize) {
		return nil, errors.New("its areas have other sizes")
	}
	t, known := a.Tokens[strconv.Itoa(tokenID)]
	if known && (len(a.Tokens) != 1 || t.Type != tokenType) || !known && len(a.Tokens) > 0 {
		return nil, errors.New("its token is another one")
	}
	return slots, nil
}

func (k keyslot) check() error {
	offset, err := strconv.ParseUint(k.Area.Offset, 10, 32)
	switch {
	case err != nil || offset < 2*copySize || offset%4096 != 0 || offset+slotSize > HeaderSize || k.Area.Size != strconv.Itoa(slotSize):
		return errors.New("it has another position")
	case k.Type != "luks2" || k.KeySize != cipherSize || k.Area.Type != "raw" || k.Area.Encryption != cipher || k.Area.KeySize != cipherSize:
		return errors.New("it has another cipher")
	case k.Split.Type != "luks1" || k.Split.Stripes != 4000 || k.Split.Hash != "sha256":
		return errors.New("it has another splitter")
	case k.KDF.Type != "pbkdf2" || k.KDF.Hash != "sha256" || k.KDF.Iterations != iterations || !hasBytes(k.KDF.Salt, 32):
		return errors.New("it has another key derivation")
	}
	return nil
}

// overlaps reports whether two key slots, which check has accepted, have common bytes.
func (a area) overlaps() bool {
	var starts []int
	for _, k := range a.Keyslots {
		start, _ := strconv.Atoi(k.Area.Offset)
		starts = append(starts, start)
	}
	slices.Sort(starts)
	for i := 1; i < len(starts); i++ {
		if starts[i]-starts[i-1] < slotSize {
			return true
		}
	}
	return false
}

// hasBytes reports whether a text is the base64 of n bytes.
func hasBytes(text string, n int) bool {
	raw, err := base64.StdEncoding.DecodeString(text)
	return err == nil && len(raw) == n
}
