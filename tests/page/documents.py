"""Small documents made by hand: a PDF and a DOCX with the text that is asked for."""

import io
import zipfile

NAMESPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def pdf(*pages):
    """Return a PDF with one line of text on each page; an empty text draws nothing."""
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    bodies = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, text in enumerate(pages):
        drawn = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET" if text else ""
        page = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Resources << /Font << /F1 3 0 R >> >>"
        bodies += [f"{page} /Contents {5 + 2 * i} 0 R >>"]
        bodies += [f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream"]
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    rows = "".join(f"{place:010} 00000 n \n" for place in places)
    table = f"xref\n0 {len(bodies) + 1}\n0000000000 65535 f \n{rows}"
    tail = f"trailer\n<< /Size {len(bodies) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF\n"
    return out + (table + tail).encode()


def docx(body, compression=zipfile.ZIP_DEFLATED):
    """Return a DOCX with this body, whose elements have the prefix w."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        file.writestr("[Content_Types].xml", "<Types/>")
        whole = f'<w:document xmlns:w="{NAMESPACE}"><w:body>{body}</w:body></w:document>'
        file.writestr("word/document.xml", whole)
    return out.getvalue()
