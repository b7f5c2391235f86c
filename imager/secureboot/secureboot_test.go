package secureboot

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"debug/pe"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/foxboron/go-uefi/authenticode"
	"github.com/foxboron/go-uefi/efi/signature"
	"github.com/foxboron/go-uefi/efivar"

	"github.com/orlop-os/orlop/pkg/secureboot"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// The variable at is the time in the enrollment files.
var at = time.Date(2026, 11, 29, 12, 30, 15, 999, time.FixedZone("", 3600))

// fixed returns the signer with the key NAME.key and the certificate NAME.crt in testdata.
func fixed(t *testing.T, name string) Signer {
	t.Helper()
	certificate, err := ParseCertificate(read(t, name+".crt"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := FromKey(certificate, read(t, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// golden compares a result with a golden file. With -update, it writes the file first.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s differs (%v), got\n%.4000s", file, err, got)
	}
}

// image returns a small PE image with three sections, and data after them. The file has the content
// of the second section before the first. The third section has no content.
func image(t *testing.T) []byte {
	t.Helper()
	const peAt, headers = 0x40, 512
	var b bytes.Buffer
	b.WriteString("MZ")
	b.Write(make([]byte, peAt-2))
	binary.LittleEndian.PutUint32(b.Bytes()[0x3c:], peAt)
	text := pe.SectionHeader32{VirtualSize: 600, VirtualAddress: 0x1000, SizeOfRawData: 1024, PointerToRawData: 1024}
	data := pe.SectionHeader32{VirtualSize: 5, VirtualAddress: 0x2000, SizeOfRawData: 512, PointerToRawData: 512}
	copy(text.Name[:], ".text")
	copy(data.Name[:], ".data")
	for _, part := range []any{
		[]byte("PE\x00\x00"), pe.FileHeader{Machine: pe.IMAGE_FILE_MACHINE_AMD64, NumberOfSections: 3, SizeOfOptionalHeader: 240},
		pe.OptionalHeader64{Magic: 0x20b, SectionAlignment: 4096, FileAlignment: 512, SizeOfImage: 0x3000, CheckSum: 7, NumberOfRvaAndSizes: 16, SizeOfHeaders: headers},
		text, data, pe.SectionHeader32{VirtualSize: 9, VirtualAddress: 0x3000}, // without content
	} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	b.Write(make([]byte, headers-b.Len()))
	b.WriteString(strings.Repeat("d", 512) + strings.Repeat("t", 1024) + "the rest")
	return b.Bytes()
}

// accept returns the decision of pkg/secureboot, the implementation on machines.
func accept(image, db, dbx []byte) error {
	return secureboot.Accept(bytes.NewReader(image), int64(len(image)), db, dbx)
}

func sign(t *testing.T, s Signer, image []byte) []byte {
	t.Helper()
	out, err := s.Sign(image)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSign checks that a signature is reproducible, that the library verifies it only with the
// certificate of the key, and that the image itself does not change. The tests of pkg/secureboot
// read the golden files.
func TestSign(t *testing.T) {
	db, other := fixed(t, "db"), fixed(t, "KEK")
	out := sign(t, db, image(t))
	if again := sign(t, db, image(t)); !bytes.Equal(out, again) {
		t.Error("two signatures of the same image with the same key differ")
	}
	golden(t, "../../pkg/secureboot/testdata/signed.efi", out)
	golden(t, "../../pkg/secureboot/testdata/unsigned.efi", image(t))
	golden(t, "../../pkg/secureboot/testdata/db.esl", List(db.Certificate.Raw, secureboot.GUID{1}))
	binary, err := authenticode.Parse(bytes.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := binary.Verify(db.Certificate); !ok || err != nil {
		t.Errorf("the library rejects the signature: %v", err)
	}
	if ok, _ := binary.Verify(other.Certificate); ok {
		t.Error("the library accepts the signature with another certificate")
	}
	if before, after := image(t), bytes.Clone(out[:len(image(t))]); true {
		const entry = 0x40 + 24 + 144 // offset of the table entry for signatures
		copy(after[entry:], before[entry:entry+8])
		if !bytes.Equal(before, after) {
			t.Error("the image itself has changed")
		}
	}
	if _, err := db.Sign(out); err == nil || !strings.Contains(err.Error(), "has 1 signatures already") {
		t.Errorf("a signed image: %v", err)
	}
	if _, err := db.Sign([]byte("ELF")); err == nil || !strings.Contains(err.Error(), "is not a 64-bit PE image") {
		t.Errorf("a file that is not a PE image: %v", err)
	}
}

// issued returns a signer with a certificate that another signer has issued.
func issued(t *testing.T, by Signer) Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "leaf"}, NotBefore: at.AddDate(-9, 0, 0), NotAfter: at.AddDate(-8, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, by.Certificate, key.Public(), by.Key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return Signer{Certificate: certificate, Key: key}
}

// digests returns a signature list of digests.
func digests(kind secureboot.GUID, all ...[]byte) []byte {
	size := 16 + len(all[0])
	out := append([]byte(nil), kind[:]...)
	out = binary.LittleEndian.AppendUint32(out, uint32(28+size*len(all)))
	out = binary.LittleEndian.AppendUint32(out, 0)
	out = binary.LittleEndian.AppendUint32(out, uint32(size))
	for _, d := range all {
		out = append(append(out, make([]byte, 16)...), d...)
	}
	return out
}

// TestAccept checks which boot images machines accept, for several contents of db and dbx.
func TestAccept(t *testing.T) {
	db, other := fixed(t, "db"), fixed(t, "KEK")
	leaf := issued(t, db)
	signed, unsigned := sign(t, db, image(t)), image(t)
	parsed, err := secureboot.ParseImage(bytes.NewReader(signed), int64(len(signed)))
	if err != nil {
		t.Fatal(err)
	}
	digest, owner := parsed.Digest[:], secureboot.GUID{2}
	tbs := sha256.Sum256(db.Certificate.RawTBSCertificate)
	typeTBS := secureboot.GUID{0x92, 0xa4, 0xd2, 0x3b, 0xc0, 0x96, 0x79, 0x40, 0xb4, 0x20, 0xfc, 0xf9, 0x8e, 0xf1, 0x03, 0xed}
	byDB, byOther := List(db.Certificate.Raw, owner), List(other.Certificate.Raw, owner)
	byLeaf := sign(t, leaf, image(t))
	for name, c := range map[string]struct {
		image, db, dbx []byte
		want           string // part of the error; empty if the image is accepted
	}{
		"the certificate":         {signed, byDB, nil, ""},
		"one of two certificates": {signed, append(bytes.Clone(byOther), byDB...), byOther, ""},
		"another certificate":     {signed, byOther, nil, `signed by "CN=Test Site db" (` + secureboot.Fingerprint(db.Certificate.Raw) + "), which no certificate in db accepts; db has " + secureboot.Fingerprint(other.Certificate.Raw)},
		"an empty db":             {signed, nil, nil, "db has no certificate"},
		"no signature":            {unsigned, byDB, nil, "the boot image has no signature"},
		"no signature, but the digest of the image is in db": {unsigned, digests(secureboot.TypeSHA256, make([]byte, 32), digest), nil, ""},
		"another digest":                          {unsigned, digests(secureboot.TypeSHA256, make([]byte, 32)), nil, "has no signature"},
		"a revoked digest":                        {signed, byDB, digests(secureboot.TypeSHA256, digest), "the digest of the boot image is in dbx"},
		"a revoked certificate":                   {signed, byDB, byDB, `certificate "CN=Test Site db" (sha256:`},
		"a revoked digest of the certificate":     {signed, byDB, digests(typeTBS, append(tbs[:], make([]byte, 16)...)), "of the boot image is in dbx"},
		"a revocation of another image":           {signed, byDB, digests(secureboot.TypeSHA256, make([]byte, 32)), ""},
		"the issuer of an expired certificate":    {byLeaf, byDB, nil, ""},
		"the certificate itself is expired":       {byLeaf, List(leaf.Certificate.Raw, owner), nil, ""},
		"the issuer is revoked":                   {byLeaf, List(leaf.Certificate.Raw, owner), byDB, `certificate "CN=Test Site db"`},
		"the issuer is unknown":                   {byLeaf, byOther, nil, "which no certificate in db accepts"},
		"a change of the content":                 {change(signed, "ttt", "tTt"), byDB, nil, "for another content of the image"},
		"a change of the data after the sections": {change(signed, "the rest", "the Rest"), byDB, nil, "for another content"},
		"a changed signature":                     {flipLast(signed), byDB, nil, "does not match its certificate"},
		"a damaged db":                            {signed, byDB[:40], nil, "variable db: signature list"},
		"a damaged dbx":                           {signed, byDB, byDB[:40], "variable dbx: signature list"},
		"no image":                                {[]byte("MZ"), byDB, nil, "is not a 64-bit PE image"},
		"a truncated image":                       {signed[:len(signed)-8], byDB, nil, "signatures have"},
		"a signature without a table entry":       {append(bytes.Clone(unsigned), signed[len(unsigned):]...), byDB, nil, "has no signature"},
	} {
		err := accept(c.image, c.db, c.dbx)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func change(image []byte, from, to string) []byte {
	return bytes.Replace(image, []byte(from), []byte(to), 1)
}

// flipLast changes the last byte of the RSA signature.
func flipLast(signed []byte) []byte {
	out := bytes.Clone(signed)
	at := len(bytes.TrimRight(out, "\x00")) - 1
	out[at] ^= 1
	return out
}

// TestEnroll compares the structure of the enrollment files with a golden file, and reads the files
// with the library. Like firmware, the test composes the signed text from the name, GUID,
// attributes, time and content of the variable, and verifies the signature of this text.
func TestEnroll(t *testing.T) {
	signers := map[string]Signer{"PK": fixed(t, "PK"), "KEK": fixed(t, "KEK"), "db": fixed(t, "db")}
	files, again := Files{}, Files{}
	for _, f := range []Files{files, again} {
		if err := enroll(f, signers, []*x509.Certificate{signers["PK"].Certificate}, at); err != nil {
			t.Fatal(err)
		}
	}
	var text strings.Builder
	for _, name := range names {
		file := files[name+".auth"]
		if !bytes.Equal(file, again[name+".auth"]) {
			t.Errorf("%s: two files with the same keys differ", name)
		}
		by := signers["PK"]
		if name == "db" {
			by = signers["KEK"]
		}
		describe(t, &text, name, file, by)
	}
	golden(t, "testdata/enroll.golden", []byte(text.String()))
	if _, err := signers["PK"].Enroll("MokList", nil, at); err == nil || !strings.Contains(err.Error(), "PK, KEK or db expected") {
		t.Errorf("another variable: %v", err)
	}
}

func describe(t *testing.T, to io.Writer, name string, file []byte, by Signer) {
	t.Helper()
	auth, err := signature.ReadEFIVariableAuthencation2(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	content, err := Content(file)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(to, "%s.auth\n  time %s\n  header %d bytes, revision %#x, type %#x, %s\n", name, auth.Time.Format(),
		auth.AuthInfo.Header.Length, auth.AuthInfo.Header.Revision, uint16(auth.AuthInfo.Header.CertType), auth.AuthInfo.CertType.Format())
	entries, err := secureboot.ParseLists(content)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fmt.Fprintf(to, "  list of type %x, owner %x: %s\n", e.Type, e.Owner, secureboot.Fingerprint(e.Data))
	}
	if lists, err := signature.ReadSignatureDatabase(bytes.NewReader(content)); err != nil || len(lists) != len(entries) {
		t.Errorf("%s: the library reads %d lists, %v", name, len(lists), err)
	}
	var signed bytes.Buffer
	for _, letter := range name {
		signed.WriteString(string(letter) + "\x00")
	}
	variable := map[string]efivar.Efivar{"PK": efivar.PK, "KEK": efivar.KEK, "db": efivar.Db}[name]
	for _, field := range []any{*variable.GUID, variable.Attributes, auth.Time} {
		if err := binary.Write(&signed, binary.LittleEndian, field); err != nil {
			t.Fatal(err)
		}
	}
	signed.Write(content)
	value := auth.AuthInfo.CertData[len(auth.AuthInfo.CertData)-256:] // RSA-2048, at the end
	if err := by.Certificate.CheckSignature(x509.SHA256WithRSA, signed.Bytes(), value); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	fmt.Fprintf(to, "  signed with %q:\n  %x\n", by.Certificate.Subject.String(), auth.AuthInfo.CertData)
}

// TestContent checks that a damaged enrollment file is rejected.
func TestContent(t *testing.T) {
	file, err := fixed(t, "PK").Enroll("db", List(fixed(t, "db").Certificate.Raw, secureboot.GUID{}), at)
	if err != nil {
		t.Fatal(err)
	}
	empty, err := fixed(t, "PK").Enroll("db", nil, at)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"a whole file": {file, ""}, "a truncated header": {file[:19], "not an enrollment file"}, "a truncated signature": {file[:200], "not an enrollment file"},
		"a truncated list": {file[:len(file)-1], "signature list"}, "no key": {empty, "enrolls no key"},
	} {
		if _, err := Content(c.file); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNewKeys checks that the new keys can sign. The new db must accept images that are signed with
// the new key of db, or with the key of the other certificate.
func TestNewKeys(t *testing.T) {
	other := fixed(t, "db")
	files, err := NewKeys("A Site", []*x509.Certificate{other.Certificate}, at)
	if err != nil || len(files) != 9 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	certificate, err := ParseCertificate(files["db.crt"])
	if err != nil || certificate.Subject.String() != "CN=A Site db" {
		t.Fatalf("the new certificate of db: %v", err)
	}
	own, err := FromKey(certificate, files["db.key"])
	if err != nil {
		t.Fatal(err)
	}
	db, err := Content(files["db.auth"])
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Signer{own, other} {
		if err := accept(sign(t, s, image(t)), db, nil); err != nil {
			t.Error(err)
		}
	}
}

// TestSigner checks that wrong keys and certificates are rejected, and that a signing command gives
// the same signature as the key that the command uses.
func TestSigner(t *testing.T) {
	db := fixed(t, "db")
	if _, err := FromKey(db.Certificate, read(t, "KEK.key")); err == nil || !strings.Contains(err.Error(), `does not belong to the certificate "CN=Test Site db"`) {
		t.Errorf("another key: %v", err)
	}
	if _, err := FromKey(db.Certificate, []byte("text")); err == nil || !strings.Contains(err.Error(), "a private key (PEM) expected") {
		t.Errorf("a text that is not a key: %v", err)
	}
	for _, block := range []*pem.Block{{Type: "ENCRYPTED PRIVATE KEY"}, {Type: "RSA PRIVATE KEY", Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-256-CBC,00"}}} {
		if _, err := FromKey(db.Certificate, pem.EncodeToMemory(block)); err == nil || !strings.Contains(err.Error(), "the private key is encrypted") {
			t.Errorf("%s: %v", block.Type, err)
		}
	}
	for name, text := range map[string]string{"nothing": "", "a key": string(read(t, "db.key")), "two": strings.Repeat(string(read(t, "db.crt")), 2)} {
		if _, err := ParseCertificate([]byte(text)); err == nil || !strings.Contains(err.Error(), "one certificate (PEM) expected") {
			t.Errorf("%s: %v", name, err)
		}
	}
	command := func(mode string) Signer {
		t.Setenv("SIGN_FOR_TEST", mode)
		return FromCommand(db.Certificate, []string{os.Args[0], "-test.run", "^$"})
	}
	want := sign(t, db, image(t))
	if got := sign(t, command("db"), image(t)); !bytes.Equal(got, want) {
		t.Error("a signing command gives another signature than its key")
	}
	if _, err := command("KEK").Sign(image(t)); err == nil || !strings.Contains(err.Error(), `does not match the certificate "CN=Test Site db"`) {
		t.Errorf("a command with another key: %v", err)
	}
	if _, err := command("fail").Sign(image(t)); err == nil || !strings.Contains(err.Error(), "the token is locked") {
		t.Errorf("a command that fails: %v", err)
	}
	if _, err := FromCommand(db.Certificate, []string{"/nonexistent"}).Sign(image(t)); err == nil || !strings.Contains(err.Error(), "signing command /nonexistent") {
		t.Errorf("a command that does not exist: %v", err)
	}
}

// TestSignerWithAgent checks that Sign succeeds although the signing command has started a process
// (an agent) that holds the output of the command open.
func TestSignerWithAgent(t *testing.T) {
	db := fixed(t, "db")
	file := filepath.Join(t.TempDir(), "agent")
	t.Setenv("SIGN_FOR_TEST", "agent")
	t.Setenv("SIGN_FOR_TEST_AGENT", file)
	got, err := FromCommand(db.Certificate, []string{os.Args[0], "-test.run", "^$"}).Sign(image(t))
	if err != nil || !bytes.Equal(got, sign(t, db, image(t))) {
		t.Errorf("a signing command with an agent: %v, or another signature than with its key", err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the agent has ended before the test: %v", err)
	}
}

// leaveAgent starts a process that holds the output open until a signal ends it.
func leaveAgent() error {
	c := exec.Command(os.Args[0], "-test.run", "^$")
	c.Env, c.Stdout, c.Stderr = append(os.Environ(), "SIGN_FOR_TEST=hold"), os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		return err
	}
	return os.WriteFile(os.Getenv("SIGN_FOR_TEST_AGENT"), []byte(strconv.Itoa(c.Process.Pid)), 0o600)
}

// TestMain acts as the signing command of TestSigner if the variable SIGN_FOR_TEST is set.
func TestMain(m *testing.M) {
	mode := os.Getenv("SIGN_FOR_TEST")
	if mode == "" {
		os.Exit(m.Run())
	}
	var err error
	switch mode {
	case "fail":
		err = errors.New("the token is locked")
	case "hold":
		end := make(chan os.Signal, 1)
		signal.Notify(end, os.Interrupt)
		<-end
	case "agent":
		err = errors.Join(leaveAgent(), signStdin("db"))
	default:
		err = signStdin(mode)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// signStdin acts as a signing command: it signs the digest in the standard input with a key of
// testdata.
func signStdin(name string) error {
	certificate, err := os.ReadFile(filepath.Join("testdata", name+".crt"))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(filepath.Join("testdata", name+".key"))
	if err != nil {
		return err
	}
	parsed, err := ParseCertificate(certificate)
	if err != nil {
		return err
	}
	s, err := FromKey(parsed, key)
	if err != nil {
		return err
	}
	digest, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	value, err := s.Key.Sign(nil, digest, crypto.SHA256)
	if err == nil {
		_, err = os.Stdout.Write(value)
	}
	return err
}
